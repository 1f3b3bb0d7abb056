#include "api/connection_poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace tandem::api {
namespace {

constexpr size_t kMaxOverflow = 64;    // connections waiting beyond max_connections; more are closed at once
constexpr size_t kMaxLingering = 64;
constexpr int64_t kOverflowHeadMs = 2000;
constexpr int64_t kLingerMs = 2000;
constexpr int64_t kAcceptPauseUs = 100'000;  // out of descriptors: let some connections end
// Idle connections are kept a little longer than advertised, so that a request sent in the last moment is
// still served instead of reset.
constexpr int64_t kIdleGraceMs = 2000;

}  // namespace

ConnectionPoller::ConnectionPoller(UniqueFd listening, Limits limits,
                                   std::function<void(std::unique_ptr<Connection>)> ready)
    : listening_(std::move(listening)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      limits_(limits),
      ready_(std::move(ready)) {
  CHECK(epoll_.valid() && wake_fd_.valid());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = &wake_fd_;
  CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_fd_.get(), &event) == 0);
  event.data.ptr = &listening_;
  CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listening_.get(), &event) == 0);
  thread_ = std::thread([this] { loop(); });
}

ConnectionPoller::~ConnectionPoller() { stop(); }

void ConnectionPoller::wake() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(wake_fd_.get(), &one, sizeof one);
}

void ConnectionPoller::give_back(std::unique_ptr<Connection> connection) {
  {
    std::lock_guard lock(mutex_);
    returned_.push_back(std::move(connection));
  }
  wake();
}

void ConnectionPoller::linger(std::unique_ptr<Connection> connection) {
  if (connection->stream.is_broken() || n_lingering_ >= kMaxLingering) return;  // closes
  connection->stream.shutdown_write();
  connection->is_lingering = true;
  connection->counted = CountGuard(&n_lingering_);
  give_back(std::move(connection));
}

void ConnectionPoller::leave_socket() {
  is_leaving_ = true;
  wake();
}

void ConnectionPoller::stop_accepting() {
  is_accepting_ = false;
  wake();
}

void ConnectionPoller::stop() {
  is_accepting_ = false;
  is_stopped_ = true;
  hard_stop_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

int ConnectionPoller::timeout_ms(int64_t now_us) const {
  int64_t until = next_deadline_us_;
  if (accept_paused_until_us_ > 0) until = std::min(until, accept_paused_until_us_);
  if (until == INT64_MAX) return -1;
  return static_cast<int>(std::clamp<int64_t>((until - now_us) / 1000 + 1, 0, 60000));
}

void ConnectionPoller::loop() {
  epoll_event events[64];
  while (!is_stopped_) {
    int n = epoll_wait(epoll_.get(), events, 64, timeout_ms(monotonic_us()));
    for (int i = 0; i < n; ++i) {
      void* tag = events[i].data.ptr;
      if (tag == &listening_) {
        accept_all();
      } else if (tag == &wake_fd_) {
        uint64_t count;
        [[maybe_unused]] ssize_t got = read(wake_fd_.get(), &count, sizeof count);
      } else {
        on_readable(static_cast<Connection*>(tag));
      }
    }
    take_returned();
    if (is_leaving_ || !is_accepting_) close_listening();
    if (!is_accepting_ && !is_idle_closed_) close_idle();
    expire(monotonic_us());
  }
  watched_.clear();
  std::lock_guard lock(mutex_);
  returned_.clear();
}

// An inherited socket stays open elsewhere, so closing our descriptor does not take it out of the epoll set.
void ConnectionPoller::close_listening() {
  if (!listening_.valid()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listening_.get(), nullptr);
  listening_.reset();
}

void ConnectionPoller::close_idle() {
  is_idle_closed_ = true;
  std::vector<Connection*> idle;
  for (auto& [connection, owner] : watched_)
    if (!connection->is_lingering && !connection->is_head_started) idle.push_back(connection);
  for (Connection* connection : idle) release(connection);
}

void ConnectionPoller::accept_all() {
  while (listening_.valid()) {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      log_warn("connection not accepted", {{"reason", errno_status(errno, "accept").message()}});
      accept_paused_until_us_ = monotonic_us() + kAcceptPauseUs;
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listening_.get(), nullptr);
      return;
    }
    bool is_overflow = n_regular_ >= limits_.max_connections;
    if (is_overflow && n_overflow_ >= kMaxOverflow) continue;  // closes
    std::unique_ptr<TlsSession> tls = limits_.tls ? limits_.tls->accept(fd.get()) : nullptr;
    if (limits_.tls && !tls) continue;  // out of memory: closes
    auto connection = std::make_unique<Connection>(std::move(fd), &hard_stop_, limits_.silent_peer_ms, std::move(tls));
    connection->is_overflow = is_overflow;
    connection->counted = CountGuard(is_overflow ? &n_overflow_ : &n_regular_);
    int64_t wait_ms = is_overflow ? std::min(kOverflowHeadMs, limits_.header_timeout_ms) : limits_.header_timeout_ms;
    watch(std::move(connection), monotonic_us() + wait_ms * 1000);
  }
}

void ConnectionPoller::watch(std::unique_ptr<Connection> connection, int64_t deadline_us) {
  connection->deadline_us = deadline_us;
  next_deadline_us_ = std::min(next_deadline_us_, deadline_us);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = connection.get();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->stream.fd(), &event) != 0) return;  // closes
  Connection* key = connection.get();
  watched_[key] = std::move(connection);
}

std::unique_ptr<Connection> ConnectionPoller::release(Connection* connection) {
  auto found = watched_.find(connection);
  CHECK(found != watched_.end());
  std::unique_ptr<Connection> owner = std::move(found->second);
  watched_.erase(found);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, owner->stream.fd(), nullptr);
  return owner;
}

// Looks for a complete head in what has arrived. True: the connection may be handed on.
bool ConnectionPoller::try_dispatch(Connection* c) {
  GuardedStream& stream = c->stream;
  if (!c->is_head_started) {  // blank lines between requests are allowed (RFC 9112, 2.2)
    while (!stream.buffered().empty() && (stream.buffered()[0] == '\r' || stream.buffered()[0] == '\n'))
      stream.consume(1);
    if (stream.buffered().empty()) return false;
    c->is_head_started = true;
    c->deadline_us = std::min(c->deadline_us, monotonic_us() + limits_.header_timeout_ms * 1000);
    next_deadline_us_ = std::min(next_deadline_us_, c->deadline_us);
  }
  std::string_view bytes = stream.buffered();
  size_t from = c->n_scanned > 3 ? c->n_scanned - 3 : 0;
  size_t end = find_head_end(bytes.substr(from));
  c->n_scanned = bytes.size();
  c->head_bytes = end == std::string_view::npos ? 0 : from + end;
  if ((c->head_bytes == 0 ? bytes.size() : c->head_bytes) > limits_.max_header_bytes) {
    c->head_error = api_error("headers_too_large", "the request head must be at most " +
                                                       std::to_string(limits_.max_header_bytes) + " bytes");
    return true;
  }
  return c->head_bytes > 0;
}

void ConnectionPoller::on_readable(Connection* connection) {
  if (watched_.find(connection) == watched_.end()) return;  // released earlier in this turn
  bool is_open = connection->stream.fill();
  if (connection->is_lingering) {
    connection->stream.consume(connection->stream.buffered().size());
    if (!is_open) release(connection);
    return;
  }
  if (!is_open) {
    release(connection);
  } else if (try_dispatch(connection)) {
    ready_(release(connection));
  }
}

void ConnectionPoller::take_returned() {
  std::vector<std::unique_ptr<Connection>> returned;
  {
    std::lock_guard lock(mutex_);
    returned.swap(returned_);
  }
  for (auto& c : returned) {
    if (c->is_lingering) {
      watch(std::move(c), monotonic_us() + kLingerMs * 1000);
      continue;
    }
    if (!is_accepting_) continue;  // closes
    if (c->is_overflow && n_regular_ < limits_.max_connections) {
      c->is_overflow = false;
      c->counted = CountGuard(&n_regular_);
    }
    c->head_bytes = c->n_scanned = 0;
    c->is_head_started = false;
    c->deadline_us = INT64_MAX;
    int64_t idle_ms = c->is_overflow ? kOverflowHeadMs : limits_.idle_timeout_ms + kIdleGraceMs;
    int64_t deadline_us = monotonic_us() + idle_ms * 1000;
    if (try_dispatch(c.get())) {  // pipelined
      ready_(std::move(c));
      continue;
    }
    deadline_us = std::min(deadline_us, c->deadline_us);
    watch(std::move(c), deadline_us);
  }
}

void ConnectionPoller::expire(int64_t now_us) {
  if (accept_paused_until_us_ > 0 && now_us >= accept_paused_until_us_ && listening_.valid()) {
    accept_paused_until_us_ = 0;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &listening_;
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listening_.get(), &event);
  }
  if (now_us < next_deadline_us_) return;
  std::vector<Connection*> late;
  next_deadline_us_ = INT64_MAX;
  for (auto& [connection, owner] : watched_) {
    if (connection->deadline_us <= now_us)
      late.push_back(connection);
    else
      next_deadline_us_ = std::min(next_deadline_us_, connection->deadline_us);
  }
  for (Connection* connection : late) {
    std::unique_ptr<Connection> owner = release(connection);
    if (owner->is_lingering || !owner->is_head_started) continue;  // closes
    owner->head_error = api_error("request_timeout", "the request head did not arrive in time");
    ready_(std::move(owner));
  }
}

}  // namespace tandem::api
