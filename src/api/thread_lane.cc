#include "api/thread_lane.h"

#include <system_error>

#include "base/log.h"

namespace tandem::api {

bool ThreadLane::run(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (is_stopped_) return false;
  if (queue_.size() + 1 > n_idle_ && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { thread_main(); });
    } catch (const std::system_error& error) {
      log_error("connection thread not made", {{"reason", error.what()}});
      if (threads_.empty()) return false;
    }
  }
  queue_.push_back(std::move(work));
  wake_.notify_one();
  return true;
}

void ThreadLane::thread_main() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++n_idle_;
    wake_.wait(lock, [this] { return !queue_.empty() || is_stopped_; });
    --n_idle_;
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

void ThreadLane::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
    threads.swap(threads_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace tandem::api
