// One thread that owns every connection without a complete request head: fresh, idle between requests, or
// closing. So slow and idle clients cost no thread, and accept never waits for a request.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "api/api_error.h"
#include "api/guarded_stream.h"
#include "base/unique_fd.h"

namespace tandem::api {

// Counts one of something while it lives.
class CountGuard {
 public:
  CountGuard() = default;
  explicit CountGuard(std::atomic<size_t>* count) : count_(count) { count_->fetch_add(1); }
  CountGuard(CountGuard&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
  CountGuard& operator=(CountGuard&& other) noexcept {
    std::swap(count_, other.count_);
    return *this;
  }
  ~CountGuard() {
    if (count_ != nullptr) count_->fetch_sub(1);
  }

 private:
  std::atomic<size_t>* count_ = nullptr;
};

struct Connection {
  Connection(UniqueFd fd, const std::atomic<bool>* stop, int64_t silent_peer_ms, std::unique_ptr<TlsSession> tls)
      : stream(std::move(fd), stop, silent_peer_ms, std::move(tls)) {}
  GuardedStream stream;
  CountGuard counted;
  bool is_overflow = false;            // beyond max_connections: only probes are answered
  bool is_lingering = false;           // our end is shut; drained until the peer ends
  size_t head_bytes = 0;               // with a complete head
  std::optional<ApiError> head_error;  // instead: too large, too slow
  size_t n_scanned = 0;                // head bytes already searched for the blank line
  bool is_head_started = false;
  int64_t deadline_us = 0;
};

class ConnectionPoller {
 public:
  struct Limits {
    size_t max_connections = 256;
    size_t max_header_bytes = 32768;
    int64_t header_timeout_ms = 10000;
    int64_t idle_timeout_ms = 60000;
    int64_t silent_peer_ms = 31000;
    const TlsServer* tls = nullptr;  // not null: every connection is encrypted; outlives the poller
  };
  // `ready` gets each connection with a complete head or a head_error, on the poller's thread; it must not
  // block. `listening`: a listening socket.
  ConnectionPoller(UniqueFd listening, Limits limits, std::function<void(std::unique_ptr<Connection>)> ready);
  ~ConnectionPoller();
  // Any thread. A kept-alive connection comes back for its next request.
  void give_back(std::unique_ptr<Connection> connection);
  // Any thread. The last reply is written: close without destroying what the client has not read yet.
  void linger(std::unique_ptr<Connection> connection);
  void leave_socket();    // accepts no more; connections that are there live on
  void stop_accepting();  // closes the listening socket and idle connections; give_back() then closes
  void stop();            // also joins the thread
  const std::atomic<bool>& hard_stop() const { return hard_stop_; }

 private:
  void loop();
  void accept_all();
  void on_readable(Connection* connection);
  void take_returned();
  void watch(std::unique_ptr<Connection> connection, int64_t deadline_us);
  std::unique_ptr<Connection> release(Connection* connection);
  bool try_dispatch(Connection* connection);
  void expire(int64_t now_us);
  void close_listening();
  void close_idle();
  void wake();
  int timeout_ms(int64_t now_us) const;

  UniqueFd listening_, epoll_, wake_fd_;
  const Limits limits_;
  const std::function<void(std::unique_ptr<Connection>)> ready_;
  std::unordered_map<Connection*, std::unique_ptr<Connection>> watched_;  // poller thread
  int64_t next_deadline_us_ = INT64_MAX;                                  // poller thread
  int64_t accept_paused_until_us_ = 0;                                    // poller thread
  std::atomic<size_t> n_regular_{0}, n_overflow_{0}, n_lingering_{0};
  std::atomic<bool> is_leaving_{false}, is_accepting_{true}, is_stopped_{false}, hard_stop_{false};
  bool is_idle_closed_ = false;  // poller thread
  std::mutex mutex_;  // guards returned_
  std::vector<std::unique_ptr<Connection>> returned_;
  std::thread thread_;
};

}  // namespace tandem::api
