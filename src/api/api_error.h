// Errors as OpenAI's clients expect them, from one table (api_error.cc): HTTP status, type, code, param.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tandem::api {

struct ApiError {
  int http_status = 500;
  std::string type;      // "invalid_request_error", "authentication_error", "rate_limit_error", "server_error", …
  std::string code;      // "context_length_exceeded", "kv_pool_exceeded", "prompt_too_long", "model_not_found", …
  std::string param;     // offending field or ""
  std::string message;   // valid UTF-8, never the client's raw bytes
  std::optional<int> retry_after_s;
};

// Makes an error from a row of the table; unknown codes are our bug. Codes: see kRows in api_error.cc.
ApiError api_error(const std::string& code, std::string message, std::string param = "",
                   std::optional<int> retry_after_s = std::nullopt);
// {"error":{"message":…,"type":…,"param":…,"code":…}}
std::string api_error_json(const ApiError& error);

template <typename T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : content_(std::move(value)) {}         // NOLINT: implicit by design
  ApiResult(ApiError error) : content_(std::move(error)) {}  // NOLINT
  bool ok() const { return content_.index() == 0; }
  T& value() { return std::get<0>(content_); }
  const ApiError& error() const { return std::get<1>(content_); }

 private:
  std::variant<T, ApiError> content_;
};

}  // namespace tandem::api
