#include "api/guarded_stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"

namespace tandem::api {
namespace {

constexpr size_t kReadBytes = 16384;
constexpr int kStopProbeMs = 200;         // how often a wait looks at `stop`
constexpr size_t kMaxChunkLineBytes = 256;
constexpr size_t kMaxTrailerBytes = 4096;
// Kernel send buffer a connection: bounds what a client that does not read can hold (the kernel doubles it).
constexpr int kSendBufferBytes = 64 * 1024;

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof value); }

void set_options(int fd, int64_t silent_peer_ms) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, kSendBufferBytes);
  // A client whose cable was pulled sends nothing: the kernel finds out within 15 + 3 * 5 seconds.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silent_peer_ms));
}

void peer_address(int fd, std::string* addr, int* port) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return;
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(&storage);
    inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    *port = ntohs(in->sin_port);
  } else if (storage.ss_family == AF_INET6) {
    auto* in = reinterpret_cast<sockaddr_in6*>(&storage);
    inet_ntop(AF_INET6, &in->sin6_addr, text, sizeof text);
    *port = ntohs(in->sin6_port);
  }
  *addr = text;
}

ApiError bad_chunk() { return api_error("invalid_http", "bad HTTP request: chunked body framing"); }
ApiError too_large(size_t max_bytes) {
  return api_error("body_too_large",
                   "the request body must be at most " + std::to_string(max_bytes) + " bytes");
}

}  // namespace

GuardedStream::GuardedStream(UniqueFd fd, const std::atomic<bool>* stop, int64_t silent_peer_ms,
                             std::unique_ptr<TlsSession> tls)
    : fd_(std::move(fd)), tls_(std::move(tls)), stop_(stop) {
  set_options(fd_.get(), silent_peer_ms);
  peer_address(fd_.get(), &remote_addr_, &remote_port_);
}

ssize_t GuardedStream::receive(char* bytes, size_t size) {
  return tls_ ? tls_->read(bytes, size) : recv(fd_.get(), bytes, size, 0);
}

ssize_t GuardedStream::send_some(std::string_view bytes) {
  return tls_ ? tls_->write(bytes) : send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

bool GuardedStream::fill() {
  char bytes[kReadBytes];
  ssize_t n = 0;
  do {  // poll() knows nothing of the rest of a TLS record (at most 16 kB) that is decrypted already
    n = receive(bytes, sizeof bytes);
    if (n > 0) buffer_.append(bytes, static_cast<size_t>(n));
  } while (n > 0 && tls_ && tls_->has_decrypted());
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

void GuardedStream::consume(size_t n) {
  offset_ += n;
  if (offset_ == buffer_.size()) {
    buffer_.clear();
    offset_ = 0;
    if (buffer_.capacity() > 4 * kReadBytes) buffer_.shrink_to_fit();
  }
}

std::optional<ApiError> GuardedStream::wait_fill(int64_t deadline_us) {
  while (true) {
    int64_t left_ms = (deadline_us - monotonic_us()) / 1000;
    if (left_ms <= 0 || *stop_)
      return api_error("request_timeout", "the request body did not arrive in time");
    pollfd p{fd_.get(), POLLIN, 0};
    if (poll(&p, 1, static_cast<int>(std::min<int64_t>(left_ms + 1, kStopProbeMs))) <= 0) continue;
    size_t before = buffer_.size();
    if (!fill()) return api_error("client_gone", "the client left");
    if (buffer_.size() > before) return std::nullopt;
  }
}

// Takes a body apart piece by piece from the stream's buffer.
struct GuardedStream::BodyReader {
  GuardedStream& stream;
  size_t max_bytes;
  int64_t deadline_us;
  std::string body;

  std::optional<ApiError> take(uint64_t n) {
    if (n > max_bytes - body.size()) return too_large(max_bytes);
    while (n > 0) {
      std::string_view have = stream.buffered();
      if (have.empty()) {
        if (auto error = stream.wait_fill(deadline_us)) return error;
        continue;
      }
      size_t part = std::min<size_t>(have.size(), n);
      body += have.substr(0, part);
      stream.consume(part);
      n -= part;
    }
    return std::nullopt;
  }

  // One CRLF line of at most `max_line` bytes, without its end.
  std::optional<ApiError> take_line(size_t max_line, std::string* line) {
    while (true) {
      std::string_view have = stream.buffered();
      size_t end = have.find('\n');
      if (end != std::string_view::npos && end <= max_line) {
        if (end == 0 || have[end - 1] != '\r') return bad_chunk();
        line->assign(have.substr(0, end - 1));
        stream.consume(end + 1);
        return std::nullopt;
      }
      if (have.size() > max_line) return bad_chunk();
      if (auto error = stream.wait_fill(deadline_us)) return error;
    }
  }

  std::optional<ApiError> chunks() {
    std::string line;
    while (true) {
      if (auto error = take_line(kMaxChunkLineBytes, &line)) return error;
      std::string_view digits = std::string_view(line).substr(0, line.find_first_of("; \t"));
      if (digits.empty() || digits.size() > 8) return bad_chunk();
      uint64_t size = 0;
      for (char c : digits) {
        int v = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (v < 0) return bad_chunk();
        size = size * 16 + static_cast<uint64_t>(v);
      }
      if (size == 0) return trailers();
      if (auto error = take(size)) return error;
      if (auto error = take_line(2, &line)) return error;
      if (!line.empty()) return bad_chunk();
    }
  }

  std::optional<ApiError> trailers() {  // read and dropped
    std::string line;
    for (size_t total = 0; total <= kMaxTrailerBytes; total += line.size() + 2) {
      if (auto error = take_line(kMaxTrailerBytes, &line)) return error;
      if (line.empty()) return std::nullopt;
    }
    return bad_chunk();
  }
};

ApiResult<std::string> GuardedStream::read_body(const HttpHead& head, size_t max_bytes, int64_t deadline_us) {
  BodyReader reader{*this, max_bytes, deadline_us, {}};
  auto error = head.is_chunked ? reader.chunks() : reader.take(head.content_length.value_or(0));
  if (error) return *error;
  return std::move(reader.body);
}

bool GuardedStream::write_all(std::string_view bytes, int64_t timeout_ms) {
  int64_t give_up_us = monotonic_us() + timeout_ms * 1000;
  while (!bytes.empty() && !is_broken_) {
    ssize_t n = send_some(bytes);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      give_up_us = monotonic_us() + timeout_ms * 1000;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    int64_t left_ms = (give_up_us - monotonic_us()) / 1000;
    if ((n < 0 && errno != EAGAIN) || left_ms <= 0 || *stop_) {
      is_broken_ = true;
      is_timed_out_ = left_ms <= 0;
      break;
    }
    pollfd p{fd_.get(), tls_ && n < 0 ? tls_->poll_events() : static_cast<short>(POLLOUT), 0};
    poll(&p, 1, static_cast<int>(std::min<int64_t>(left_ms + 1, kStopProbeMs)));
    if ((p.revents & (POLLERR | POLLHUP)) != 0) is_broken_ = true;
  }
  return !is_broken_;
}

bool GuardedStream::is_peer_gone() const {
  if (is_broken_) return true;
  pollfd p{fd_.get(), POLLRDHUP, 0};  // set once the peer's end arrived, whatever is still unread before it
  return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

void GuardedStream::shutdown_write() {
  if (tls_) tls_->say_goodbye();
  shutdown(fd_.get(), SHUT_WR);
}

}  // namespace tandem::api
