// What endpoints see of HTTP: plain structs, so that no endpoint knows the HTTP library.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api_error.h"
#include "api/key_limits.h"
#include "ipc/messages.h"

namespace tandem::api {

struct HttpRequest {
  std::string id;           // "req_" + 24 hex digits
  std::string method;       // "GET"
  std::string path;         // as sent, without the query
  std::vector<std::pair<std::string, std::string>> query;    // decoded
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case, values trimmed
  std::string body;
  std::string remote_addr;  // of the socket, never from a header
  int64_t received_us = 0;  // monotonic: head complete
  std::function<bool()> is_client_gone;  // this connection's thread only
  std::function<bool()> is_stopping;     // the server is being stopped: end streams now

  // Set by the access check.
  std::string client;       // name of the key
  ipc::Priority highest_priority = ipc::Priority::kHigh;
  std::optional<bool> is_filtered;  // what the key says; absent: as configured
  KeyLimit key_limit;
  // Set by inference endpoints, for the row of a request refused later.
  ipc::Priority priority = ipc::Priority::kNormal;

  const std::string* header(std::string_view lower_name) const;  // nullptr: absent
  std::string query_value(std::string_view name) const;          // "" when absent
};

// Takes a streamed body. write() blocks until the bytes are handed to the kernel; false: the client is gone or
// took no byte for server.slow_reader_timeout_ms, and nothing more will arrive.
class ReplySink {
 public:
  virtual ~ReplySink() = default;
  virtual bool write(std::string_view bytes) = 0;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Set: the body is streamed by this function after the head is out. Returns true for a normal end; false:
  // the connection is closed after it.
  std::function<bool(ReplySink&)> stream;
  std::optional<ApiError> error;  // what `body` says, for the request log
  bool is_logged = false;         // the service already owns this request's row
  bool must_close = false;
};

HttpReply error_reply(ApiError error);
HttpReply json_reply(std::string body);

}  // namespace tandem::api
