#include "supervisor/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/check.h"

namespace tandem {

Inbox::Inbox() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { CHECK(event_.valid()); }

bool Inbox::post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (is_closed_) return false;
    work_.push_back(std::move(work));
  }
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n =
      write(event_.get(), &one, sizeof one);  // full counter: already awake
  return true;
}

void Inbox::run_all() {
  uint64_t count = 0;
  [[maybe_unused]] ssize_t n = read(event_.get(), &count, sizeof count);
  std::vector<std::function<void()>> work;
  {
    std::lock_guard lock(mutex_);
    work.swap(work_);
  }
  for (auto& w : work) w();
}

void Inbox::close() {
  std::lock_guard lock(mutex_);
  is_closed_ = true;
}

}  // namespace tandem
