// The one table of API errors. Where another text names a status, design's table wins.
#include "api/api_error.h"

#include <string_view>

#include "api/json_writer.h"
#include "base/check.h"

namespace tandem::api {
namespace {

struct Row {
  const char* code;
  int http_status;
  const char* type;
};
constexpr const char* kInvalid = "invalid_request_error";
constexpr Row kRows[] = {
    {"invalid_value", 400, kInvalid},          // a field is wrong; the bound is in the message
    {"invalid_json", 400, kInvalid},           // not JSON, not UTF-8, too deep, duplicate keys
    {"invalid_http", 400, kInvalid},           // request head or framing
    {"unsupported_parameter", 400, kInvalid},  // known, not served yet
    {"unsupported_content", 400, kInvalid},    // a content part that is not text
    {"invalid_prompt", 400, kInvalid},
    {"template_error", 400, kInvalid},         // the chat template refused the conversation
    {"no_chat_template", 400, kInvalid},
    {"context_length_exceeded", 400, kInvalid},
    {"kv_pool_exceeded", 400, kInvalid},
    {"invalid_api_key", 401, "authentication_error"},
    {"priority_not_allowed", 403, "permission_error"},
    {"forbidden", 403, "permission_error"},
    {"host_not_allowed", 403, "permission_error"},
    {"origin_not_allowed", 403, "permission_error"},
    {"request_filtered", 403, "permission_error"},
    {"unknown_url", 404, kInvalid},
    {"model_not_found", 404, kInvalid},
    {"method_not_allowed", 405, kInvalid},
    {"admin_failed", 409, kInvalid},           // what was asked of /admin/* cannot be done now
    {"request_timeout", 408, kInvalid},        // the client was too slow to send its request
    {"body_too_large", 413, kInvalid},
    {"prompt_too_long", 413, kInvalid},
    {"uri_too_long", 414, kInvalid},
    {"headers_too_large", 431, kInvalid},
    {"overloaded", 429, "rate_limit_error"},   // shed, displaced
    {"queue_full", 429, "rate_limit_error"},
    {"key_limit_exceeded", 429, "rate_limit_error"},  // of this key; others are served
    {"client_gone", 499, "client_error"},      // never sent: nobody is there to read it
    {"internal_error", 500, "server_error"},
    {"request_quarantined", 500, "server_error"},
    {"worker_failed", 500, "server_error"},
    {"not_implemented", 501, "server_error"},
    {"no_worker", 503, "server_error"},
    {"draining", 503, "server_error"},
    {"aborted", 503, "server_error"},          // running request ended by a shutdown
    {"too_many_connections", 503, "server_error"},
    {"log_unavailable", 503, "server_error"},
    {"deadline_exceeded", 504, "server_error"},
    {"http_version_not_supported", 505, kInvalid},
};

}  // namespace

ApiError api_error(const std::string& code, std::string message, std::string param,
                   std::optional<int> retry_after_s) {
  for (const Row& row : kRows) {
    if (code == row.code)
      return {row.http_status, row.type, row.code, std::move(param), std::move(message), retry_after_s};
  }
  CHECK_MSG(false, code.c_str());
}

std::string api_error_json(const ApiError& error) {
  JsonWriter out;
  out.begin_object().key("error").begin_object();
  out.key("message").string(error.message);
  out.key("type").string(error.type);
  out.key("param");
  error.param.empty() ? out.null() : out.string(error.param);
  out.key("code");
  error.code.empty() ? out.null() : out.string(error.code);
  out.end_object().end_object();
  return out.take();
}

}  // namespace tandem::api
