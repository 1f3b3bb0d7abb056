// Threads for connections with a request in hand. A thread is made when work comes and none is idle, up to a
// bound; then it stays. Thread-safe.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::api {

class ThreadLane {
 public:
  explicit ThreadLane(size_t max_threads) : max_threads_(max_threads) {}
  ~ThreadLane() { stop(); }
  // False: stopped, or no thread could be made and none exists; `work` was not taken.
  bool run(std::function<void()> work);
  void stop();  // runs what is queued, then joins

 private:
  void thread_main();
  const size_t max_threads_;
  std::mutex mutex_;  // guards everything below
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::vector<std::thread> threads_;
  size_t n_idle_ = 0;
  bool is_stopped_ = false;
};

}  // namespace tandem::api
