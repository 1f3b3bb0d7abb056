// HTTP/1.1 over cpp-httplib, behind guards of our own: heads and bodies are read, bounded and checked here
// (connection_poller, http_head, guarded_stream) before the library sees a clean request line; it decodes
// the query and writes replies. The only file that knows the library is http_server.cc.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/http_types.h"
#include "api/tls.h"
#include "base/unique_fd.h"

namespace tandem::api {

struct HttpLimits {
  size_t max_connections = 256;
  size_t max_header_bytes = 32768;
  size_t max_body_bytes = 8 << 20;
  int64_t header_timeout_ms = 10000;
  int64_t body_timeout_ms = 60000;
  int64_t idle_timeout_ms = 60000;
  int64_t slow_reader_timeout_ms = 30000;
  const TlsServer* tls = nullptr;  // not null: TLS on every connection
};

// Called on connection threads, many at once.
struct HttpHooks {
  // Paths answered by reserved threads, also when all others are busy.
  std::function<bool(std::string_view path)> is_probe;
  // After the head, before the body: a reply here means that the body is not read.
  std::function<std::optional<HttpReply>(HttpRequest&)> precheck;
  std::function<HttpReply(HttpRequest&)> handle;
  // Sees every reply before it is written: headers common to all, the log of refusals.
  std::function<void(const HttpRequest&, HttpReply*)> finish;
};

class HttpServer {
 public:
  HttpServer(UniqueFd listening, HttpLimits limits, HttpHooks hooks);
  ~HttpServer();
  void leave_socket();  // see ApiServer::hand_over
  void stop();          // see ApiServer::stop

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "req_" and 24 random hex digits.
std::string new_request_id();

}  // namespace tandem::api
