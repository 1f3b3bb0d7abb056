#include "raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace tandem::api {

RawClient::RawClient(int port, int receive_buffer_bytes) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_buffer_bytes > 0)
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fd_.reset();
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool RawClient::fill(int64_t deadline_us) {
  int64_t left_ms = (deadline_us - monotonic_us()) / 1000;
  if (is_eof_ || left_ms < 0) return false;
  pollfd p{fd_.get(), POLLIN, 0};
  if (poll(&p, 1, static_cast<int>(left_ms)) <= 0) return false;
  char bytes[65536];
  ssize_t n = recv(fd_.get(), bytes, sizeof bytes, 0);
  if (n <= 0) {
    is_eof_ = true;
    return false;
  }
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

std::string RawClient::read_until(std::string_view until, int timeout_ms) {
  int64_t deadline_us = monotonic_us() + timeout_ms * 1000;
  while (buffer_.find(until) == std::string::npos && fill(deadline_us)) {
  }
  return buffer_;
}

bool RawClient::is_closed(int timeout_ms) {
  int64_t deadline_us = monotonic_us() + timeout_ms * 1000;
  while (fill(deadline_us)) {
  }
  return is_eof_;
}

RawReply RawClient::read_reply(int timeout_ms, bool is_head) {
  int64_t deadline_us = monotonic_us() + timeout_ms * 1000;
  RawReply reply;
  size_t end;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
    if (!fill(deadline_us)) return reply;
  std::string head = buffer_.substr(0, end + 2);
  buffer_.erase(0, end + 4);
  reply.status = std::atoi(head.c_str() + 9);
  for (size_t at = head.find("\r\n") + 2; at < head.size();) {
    size_t line_end = head.find("\r\n", at), colon = head.find(':', at);
    std::string name = head.substr(at, colon - at), value = head.substr(colon + 1, line_end - colon - 1);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    reply.headers[name] = value.substr(std::min(value.size(), value.find_first_not_of(' ')));
    at = line_end + 2;
  }
  if (is_head || reply.status == 100) {
    reply.is_complete = true;
    return reply;
  }
  if (reply.headers.count("transfer-encoding") != 0) {
    while (true) {
      size_t line;
      while ((line = buffer_.find("\r\n")) == std::string::npos)
        if (!fill(deadline_us)) return reply;
      size_t n = std::stoul(buffer_, nullptr, 16);
      while (buffer_.size() < line + 2 + n + 2)
        if (!fill(deadline_us)) return reply;
      reply.body += buffer_.substr(line + 2, n);
      buffer_.erase(0, line + 2 + n + 2);
      if (n == 0) break;
    }
  } else if (reply.headers.count("content-length") != 0) {
    size_t n = std::stoul(reply.headers["content-length"]);
    while (buffer_.size() < n)
      if (!fill(deadline_us)) return reply;
    reply.body = buffer_.substr(0, n);
    buffer_.erase(0, n);
  } else {
    while (fill(deadline_us)) {
    }
    reply.body = std::exchange(buffer_, {});
  }
  reply.is_complete = true;
  return reply;
}

void RawClient::shutdown_write() { ::shutdown(fd_.get(), SHUT_WR); }

void RawClient::reset() {
  linger hard{1, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  fd_.reset();
}

std::string post(std::string_view path, std::string_view body, std::string_view more_headers) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         std::string(more_headers) + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}
std::string get(std::string_view path, std::string_view more_headers) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(more_headers) + "\r\n";
}

RawReply fetch(int port, const std::string& request, int timeout_ms) {
  RawClient client(port);
  client.send(request);
  return client.read_reply(timeout_ms, request.substr(0, 5) == "HEAD ");
}

std::vector<std::string> sse_events(std::string_view body) {
  std::vector<std::string> events;
  while (!body.empty()) {
    size_t end = body.find("\n\n");
    std::string_view event = body.substr(0, end);
    if (event.substr(0, 6) == "data: ") events.emplace_back(event.substr(6));
    if (end == std::string_view::npos) break;
    body.remove_prefix(end + 2);
  }
  return events;
}

}  // namespace tandem::api
