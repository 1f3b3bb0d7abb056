// Work for the loop thread from other threads: closures and an eventfd that wakes the loop.
// Thread-safe. Unbounded in itself, bounded by its users: each connection thread has at most one
// call under way.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"

namespace tandem {

class Inbox {
 public:
  Inbox();
  int fd() const { return event_.get(); }
  // False after close(): the work is not taken.
  bool post(std::function<void()> work);
  void run_all();  // loop thread: does what is there
  void close();    // loop thread: nothing more is taken; what was taken is still run by run_all()

 private:
  UniqueFd event_;
  std::mutex mutex_;  // guards work_, is_closed_
  std::vector<std::function<void()>> work_;
  bool is_closed_ = false;
};

}  // namespace tandem
