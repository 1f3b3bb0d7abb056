// Frames over a stream socket: u32 length (little-endian), then that many bytes.
#include "ipc/channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace tandem::ipc {
namespace {

constexpr size_t kHeaderBytes = 4;
constexpr size_t kReadBytes = 64 << 10;          // one read; a socket buffer is about 200 kB
constexpr size_t kReadsPerReceive = 64;          // 4 MiB: then other descriptors get their turn

bool is_peer_gone(int err) { return err == EPIPE || err == ECONNRESET || err == ENOTCONN; }

}  // namespace

Channel::Channel(UniqueFd fd, size_t max_send_bytes) : fd_(std::move(fd)), max_send_bytes_(max_send_bytes) {
  int flags = fcntl(fd_.get(), F_GETFL);
  if (flags >= 0) fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
}

Status Channel::break_locked(std::string why) {
  broken_ = true;
  out_.clear();
  out_offset_ = out_bytes_ = 0;
  shutdown(fd_.get(), SHUT_RDWR);  // both ends' pollers wake up and see the end
  return unavailable(std::move(why));
}

Status Channel::send(std::string frame) {
  if (frame.empty() || frame.size() > kMaxFrameBytes) {
    return invalid_argument("a frame must have 1 to " + std::to_string(kMaxFrameBytes) + " bytes, got " +
                            std::to_string(frame.size()));
  }
  std::lock_guard lock(mutex_);
  if (broken_) return unavailable("channel is closed");
  uint32_t size = static_cast<uint32_t>(frame.size());
  char header[kHeaderBytes];
  std::memcpy(header, &size, kHeaderBytes);
  frame.insert(0, header, kHeaderBytes);
  out_bytes_ += frame.size();
  out_.push_back(std::move(frame));
  CHECK_OK(flush_locked());
  if (out_bytes_ > max_send_bytes_) {
    return break_locked("peer does not read: " + std::to_string(out_bytes_) + " bytes wait, " +
                        std::to_string(max_send_bytes_) + " allowed");
  }
  return ok_status();
}

bool Channel::wants_write() const {
  std::lock_guard lock(mutex_);
  return !out_.empty();
}

Status Channel::flush() {
  std::lock_guard lock(mutex_);
  if (broken_) return unavailable("channel is closed");
  return flush_locked();
}

Status Channel::flush_locked() {
  while (!out_.empty()) {
    const std::string& head = out_.front();
    ssize_t n = ::send(fd_.get(), head.data() + out_offset_, head.size() - out_offset_, MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return ok_status();
      if (is_peer_gone(errno)) return break_locked("peer is gone");
      return break_locked(std::string("cannot send: ") + std::strerror(errno));
    }
    out_offset_ += static_cast<size_t>(n);
    out_bytes_ -= static_cast<size_t>(n);
    if (out_offset_ < head.size()) continue;
    out_.pop_front();
    out_offset_ = 0;
  }
  return ok_status();
}

Status Channel::receive(std::vector<std::string>* frames) {
  for (size_t i = 0; i < kReadsPerReceive; ++i) {
    size_t old_size = in_.size();
    in_.resize(old_size + kReadBytes);
    ssize_t n = ::recv(fd_.get(), in_.data() + old_size, kReadBytes, 0);
    int err = errno;
    in_.resize(old_size + (n > 0 ? static_cast<size_t>(n) : 0));
    if (n > 0) {
      CHECK_OK(take_frames(frames));
      continue;
    }
    if (n < 0 && err == EINTR) continue;
    if (n < 0 && (err == EAGAIN || err == EWOULDBLOCK)) return ok_status();
    if (n == 0 || is_peer_gone(err)) return unavailable("peer closed the channel");
    return unavailable(std::string("cannot receive: ") + std::strerror(err));
  }
  return ok_status();
}

Status Channel::take_frames(std::vector<std::string>* frames) {
  size_t begin = 0;
  while (in_.size() - begin >= kHeaderBytes) {
    uint32_t size = 0;
    std::memcpy(&size, in_.data() + begin, kHeaderBytes);
    if (size == 0 || size > kMaxFrameBytes) {
      return data_loss("frame length must be 1 to " + std::to_string(kMaxFrameBytes) + " bytes, got " +
                       std::to_string(size));
    }
    if (in_.size() - begin - kHeaderBytes < size) break;
    frames->emplace_back(in_, begin + kHeaderBytes, size);
    begin += kHeaderBytes + size;
  }
  in_.erase(0, begin);
  return ok_status();
}

Result<std::pair<UniqueFd, UniqueFd>> channel_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return errno_status(errno, "cannot create a socketpair for a worker");
  return std::pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

}  // namespace tandem::ipc
