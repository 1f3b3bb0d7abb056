// A socketpair of length-prefixed frames between tandemd and one worker. send() is thread-safe and buffers
// without blocking the caller; a peer that does not read for long hits the bound and the channel closes (a
// worker that does not read is hung). receive side is confined to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tandem::ipc {

constexpr size_t kMaxFrameBytes = 256u << 20;
constexpr size_t kMaxSendBufferBytes = 512u << 20;

class Channel {
 public:
  // Sets O_NONBLOCK. `max_send_bytes` bounds what waits for a peer that does not read.
  explicit Channel(UniqueFd fd, size_t max_send_bytes = kMaxSendBufferBytes);
  int fd() const { return fd_.get(); }

  // Queues a frame (1 to kMaxFrameBytes, else kInvalidArgument) and writes what the socket takes.
  // kUnavailable: the peer is gone or the bound is hit; the channel is then closed for good, both ways.
  Status send(std::string frame);
  bool wants_write() const;       // poll for POLLOUT
  Status flush();                 // after POLLOUT
  // Reads what is there (a few MiB at most: poll again) and appends whole frames. kUnavailable at end of
  // stream: frames that came before it are still appended, an unfinished one is dropped. kDataLoss on a
  // length of 0 or above kMaxFrameBytes: the stream cannot be followed any further.
  Status receive(std::vector<std::string>* frames);

 private:
  Status flush_locked();
  Status break_locked(std::string why);
  Status take_frames(std::vector<std::string>* frames);

  UniqueFd fd_;
  const size_t max_send_bytes_;
  mutable std::mutex mutex_;  // guards out_, out_offset_, out_bytes_, broken_
  std::deque<std::string> out_;
  size_t out_offset_ = 0;
  size_t out_bytes_ = 0;
  bool broken_ = false;
  std::string in_;            // receive thread only
};

// A connected pair (SOCK_STREAM, CLOEXEC).
Result<std::pair<UniqueFd, UniqueFd>> channel_pair();

}  // namespace tandem::ipc
