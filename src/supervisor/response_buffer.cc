#include "supervisor/response_buffer.h"

#include <utility>

#include "base/clock.h"

namespace tandem {

using api::StreamEvent;

size_t ResponseBuffer::bytes_of(const StreamEvent& event) {
  size_t n = sizeof event + event.text.size();
  for (const ipc::LogprobEntry& entry : event.logprobs) {
    n += sizeof entry + entry.chosen.bytes.size();
    for (const ipc::Logprob& top : entry.top) n += sizeof top + top.bytes.size();
  }
  return n;
}

// Joins text to the last waiting event of the same choice, so that a late reader gets fewer, larger
// pieces.
bool ResponseBuffer::merge(const StreamEvent& event) {
  if (events_.empty() || event.kind != StreamEvent::Kind::kText) return false;
  StreamEvent& last = events_.back();
  if (last.kind != StreamEvent::Kind::kText || last.choice != event.choice) return false;
  last.text += event.text;
  last.logprobs.insert(last.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
  return true;
}

bool ResponseBuffer::push(StreamEvent event) {
  std::lock_guard lock(mutex_);
  // Log-probabilities of a prompt come before anything could be read, and are bounded by the
  // prompt.
  bool is_bounded = is_stream_ && event.kind == StreamEvent::Kind::kText;
  size_t n = bytes_of(event);
  if (is_bounded && !events_.empty() && bytes_ + n > kMaxBytes) return false;
  if (events_.empty()) last_read_us_ = monotonic_us();
  bool is_merged = merge(event);
  bytes_ += is_merged ? n - sizeof event : n;
  if (!is_merged) events_.push_back(std::move(event));
  arrived_.notify_one();
  return true;
}

int64_t ResponseBuffer::stalled_us(int64_t now_us) const {
  std::lock_guard lock(mutex_);
  return events_.empty() || !is_stream_ ? 0 : now_us - last_read_us_;
}

void ResponseBuffer::cut(api::ApiError error) {
  std::lock_guard lock(mutex_);
  events_.clear();
  StreamEvent event;
  event.kind = StreamEvent::Kind::kError;
  event.error = std::move(error);
  bytes_ = bytes_of(event);
  events_.push_back(std::move(event));
  arrived_.notify_one();
}

StreamEvent ResponseBuffer::next(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, wait, [&] { return !events_.empty(); });
  last_read_us_ = monotonic_us();
  if (events_.empty()) return {};
  StreamEvent event = std::move(events_.front());
  events_.pop_front();
  bytes_ -= bytes_of(event);
  has_ended_ = event.kind == StreamEvent::Kind::kEnd || event.kind == StreamEvent::Kind::kError;
  return event;
}

bool ResponseBuffer::has_ended() const {
  std::lock_guard lock(mutex_);
  return has_ended_;
}

}  // namespace tandem
