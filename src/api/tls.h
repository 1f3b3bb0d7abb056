// TLS for the listening socket: certificate and key from files, replaced while serving. Over OpenSSL, which only tls.cc
// (and the hashing in keys.cc) sees.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/status.h"

struct ssl_st;
struct ssl_ctx_st;

namespace tandem::api {

// One connection's encryption over a non-blocking socket. Confined to one thread at a time, as its GuardedStream is.
class TlsSession {
 public:
  explicit TlsSession(ssl_st* ssl) : ssl_(ssl) {}
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // As recv() and send(): bytes, 0 for the peer's end, -1 with errno; EAGAIN: wait for poll_events() first. The handshake
  // is part of the first calls.
  ssize_t read(char* bytes, size_t size);
  ssize_t write(std::string_view bytes);
  short poll_events() const { return poll_events_; }
  bool has_decrypted() const;  // bytes that no poll() will announce
  void say_goodbye();          // close_notify, so that the peer can tell an end from a cut

 private:
  ssize_t outcome(int result);
  ssl_st* ssl_;
  short poll_events_ = 0;
  bool is_broken_ = false;
};

// Thread-safe.
class TlsServer {
 public:
  // The files are PEM: the certificate chain, its own first; the private key without a passphrase. TLS 1.2 and later.
  static Result<std::unique_ptr<TlsServer>> create(const std::string& certificate_file, const std::string& key_file);
  // Reads both files again, for connections from here on. On an error the old ones stay.
  Status reload();
  std::unique_ptr<TlsSession> accept(int fd) const;

 private:
  TlsServer(std::string certificate_file, std::string key_file);
  const std::string certificate_file_, key_file_;
  mutable std::mutex mutex_;  // guards context_
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace tandem::api
