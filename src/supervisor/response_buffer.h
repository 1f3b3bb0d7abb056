// Events on their way from the loop thread to the connection thread that writes them. The loop
// never waits for a reader: the buffer of a stream is bounded in bytes and in time, and a reader
// that lets either run out is cut. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>

#include "api/service.h"

namespace tandem {

class ResponseBuffer {
 public:
  // Of a stream's backlog. Text of thousands of tokens, or some hundred with 20 log-probabilities
  // each.
  static constexpr size_t kMaxBytes = 512 << 10;

  explicit ResponseBuffer(bool is_stream) : is_stream_(is_stream) {}

  // Loop thread. False: the backlog is full (the event is not taken); the caller cuts the stream.
  bool push(api::StreamEvent event);
  // Loop thread: how long events wait for a reader that doesn't come; 0: nothing waits.
  int64_t stalled_us(int64_t now_us) const;
  // Loop thread: drops the backlog and ends the stream; what was read before is a clean prefix.
  void cut(api::ApiError error);

  // Connection thread.
  api::StreamEvent next(std::chrono::milliseconds wait);
  bool has_ended() const;  // the reader has seen kEnd or kError

 private:
  static size_t bytes_of(const api::StreamEvent& event);
  bool merge(const api::StreamEvent& event);

  const bool is_stream_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable arrived_;
  std::deque<api::StreamEvent> events_;
  size_t bytes_ = 0;
  int64_t last_read_us_ = 0;  // when the reader last came, or the backlog began
  bool has_ended_ = false;
};

}  // namespace tandem
