#include "api/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace tandem::api {
namespace {

std::string last_reason() {
  char text[256] = "unknown reason";
  if (unsigned long code = ERR_peek_last_error(); code != 0) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return text;
}

Result<std::shared_ptr<ssl_ctx_st>> load(const std::string& certificate_file, const std::string& key_file) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (!context) return internal_error("cannot make a TLS context: " + last_reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  // A write may be taken up again with the same bytes at another address, and in part: as send() does.
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_file.c_str()) != 1)
    return invalid_argument("server.tls_certificate_file " + certificate_file + " holds no certificate that can be read: " + last_reason());
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return invalid_argument("server.tls_key_file " + key_file + " holds no key that can be read: " + last_reason());
  if (SSL_CTX_check_private_key(context.get()) != 1)
    return invalid_argument("server.tls_key_file " + key_file + " is not the key of " + certificate_file + ": " + last_reason());
  return context;
}

}  // namespace

TlsSession::~TlsSession() { SSL_free(ssl_); }

ssize_t TlsSession::outcome(int result) {
  switch (SSL_get_error(ssl_, result)) {
    case SSL_ERROR_WANT_READ:
      poll_events_ = POLLIN;
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_WANT_WRITE:
      poll_events_ = POLLOUT;
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    default:  // plain HTTP on this port, a broken record, a reset
      is_broken_ = true;
      ERR_clear_error();
      errno = ECONNRESET;
      return -1;
  }
}

ssize_t TlsSession::read(char* bytes, size_t size) {
  ERR_clear_error();
  int n = SSL_read(ssl_, bytes, static_cast<int>(std::min<size_t>(size, INT_MAX)));
  return n > 0 ? n : outcome(n);
}

ssize_t TlsSession::write(std::string_view bytes) {
  ERR_clear_error();
  int n = SSL_write(ssl_, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
  return n > 0 ? n : outcome(n);
}

bool TlsSession::has_decrypted() const { return SSL_pending(ssl_) > 0; }

void TlsSession::say_goodbye() {
  if (is_broken_ || !SSL_is_init_finished(ssl_)) return;
  ERR_clear_error();
  SSL_shutdown(ssl_);
}

TlsServer::TlsServer(std::string certificate_file, std::string key_file)
    : certificate_file_(std::move(certificate_file)), key_file_(std::move(key_file)) {}

Result<std::unique_ptr<TlsServer>> TlsServer::create(const std::string& certificate_file, const std::string& key_file) {
  std::unique_ptr<TlsServer> server(new TlsServer(certificate_file, key_file));
  CHECK_OK(server->reload());
  return server;
}

Status TlsServer::reload() {
  CHECK_ASSIGN(auto fresh, load(certificate_file_, key_file_));
  std::lock_guard lock(mutex_);
  context_ = std::move(fresh);
  return ok_status();
}

std::unique_ptr<TlsSession> TlsServer::accept(int fd) const {
  std::shared_ptr<SSL_CTX> context;
  {
    std::lock_guard lock(mutex_);
    context = context_;
  }
  SSL* ssl = SSL_new(context.get());  // keeps a reference of its own to the context
  if (ssl == nullptr) return nullptr;
  auto session = std::make_unique<TlsSession>(ssl);
  if (SSL_set_fd(ssl, fd) != 1) return nullptr;
  SSL_set_accept_state(ssl);
  return session;
}

}  // namespace tandem::api
