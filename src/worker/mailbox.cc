#include "worker/mailbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/check.h"

namespace tandem {

Mailbox::Mailbox() : bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  CHECK_MSG(bell_.valid(), "eventfd");
}

Mailbox::Letters Mailbox::take() {
  uint64_t rings = 0;
  [[maybe_unused]] ssize_t n = read(bell_.get(), &rings, sizeof rings);
  Letters out;
  {
    std::lock_guard lock(mutex_);
    out = std::exchange(letters_, {});
  }
  taken_.notify_all();
  return out;
}

void Mailbox::ring() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(bell_.get(), &one, sizeof one);  // full means rung already
}

void Mailbox::post_events(EngineEvents events) {
  {
    std::unique_lock lock(mutex_);
    taken_.wait(lock, [&] { return letters_.engine_events.size() < kMaxEngineEvents || is_closed_; });
    letters_.engine_events.push_back(std::move(events));
  }
  ring();
}

void Mailbox::post_message(ipc::FromWorker message) {
  {
    std::lock_guard lock(mutex_);
    letters_.messages.push_back(std::move(message));
  }
  ring();
}

void Mailbox::post_loaded() {
  {
    std::lock_guard lock(mutex_);
    letters_.is_loaded = true;
  }
  ring();
}

void Mailbox::post_fatal(ipc::Fatal fatal) {
  {
    std::lock_guard lock(mutex_);
    letters_.fatal = std::move(fatal);
  }
  ring();
}

void Mailbox::close() {
  {
    std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  taken_.notify_all();
}

}  // namespace tandem
