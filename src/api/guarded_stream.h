// One client connection: every read and write has a bound in bytes and in time, whatever the HTTP library
// above would allow. Confined to one thread at a time (the poller's, then a connection thread's).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "api/http_head.h"
#include "api/tls.h"
#include "base/unique_fd.h"

namespace tandem::api {

class GuardedStream {
 public:
  // `fd`: connected socket; made non-blocking. `stop`: true ends waits early (server shutdown, hard part).
  // `silent_peer_ms`: the kernel gives up on a peer that acknowledges nothing for so long.
  // `tls`: the connection's encryption; null: none.
  GuardedStream(UniqueFd fd, const std::atomic<bool>* stop, int64_t silent_peer_ms, std::unique_ptr<TlsSession> tls = nullptr);

  int fd() const { return fd_.get(); }
  const std::string& remote_addr() const { return remote_addr_; }
  int remote_port() const { return remote_port_; }

  // Reads what has arrived, without waiting, into the buffer. False: end of stream or an error.
  bool fill();
  // Bytes received and not consumed yet. The head's bytes are taken with consume().
  std::string_view buffered() const { return std::string_view(buffer_).substr(offset_); }
  void consume(size_t n);

  // Reads the body `head` announces, decoding chunks. Errors: "body_too_large", "invalid_http" (bad framing),
  // "request_timeout", "client_gone". After an error the connection can only be closed.
  ApiResult<std::string> read_body(const HttpHead& head, size_t max_bytes, int64_t deadline_us);

  // Writes everything. Gives up when the client takes no byte for `timeout_ms`, leaves, or `stop` is set;
  // then all later writes fail at once.
  bool write_all(std::string_view bytes, int64_t timeout_ms);
  bool is_broken() const { return is_broken_; }
  bool is_timed_out() const { return is_timed_out_; }  // a write gave up on a slow reader
  // The client closed its side (also only its sending side) or the connection broke.
  bool is_peer_gone() const;
  // Announces our end; the peer can still be drained so that it reads our last reply without a reset.
  void shutdown_write();

 private:
  struct BodyReader;
  ssize_t receive(char* bytes, size_t size);
  ssize_t send_some(std::string_view bytes);
  // Waits for more bytes until the deadline and appends them. Null: at least one byte came.
  std::optional<ApiError> wait_fill(int64_t deadline_us);

  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;
  const std::atomic<bool>* stop_;
  std::string buffer_;
  size_t offset_ = 0;
  bool is_broken_ = false, is_timed_out_ = false;
  std::string remote_addr_;
  int remote_port_ = 0;
};

}  // namespace tandem::api
