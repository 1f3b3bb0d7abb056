// Status and Result: how one room tells another that something did not work. Exceptions never cross a
// room's border. Messages say which field, what was found, what is allowed and what to do.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace tandem {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // someone else's input is wrong; repeating it will not help
  kNotFound,
  kPermissionDenied,
  kFailedPrecondition,  // right request, wrong moment (draining, not ready)
  kExhausted,           // pages, queue, disk: a normal answer under load
  kUnavailable,         // no worker, no device: try again later
  kDeadline,
  kCancelled,
  kDataLoss,            // truncated or damaged bytes
  kUnimplemented,       // known, not served by this build
  kInternal,            // our bug
};

const char* status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  std::string to_string() const;  // "INVALID_ARGUMENT: message"

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }
inline Status invalid_argument(std::string m) { return {StatusCode::kInvalidArgument, std::move(m)}; }
inline Status data_loss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status exhausted(std::string m) { return {StatusCode::kExhausted, std::move(m)}; }
inline Status unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status internal_error(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// "strerror" of `err` with the action and the path: "cannot open /x: Permission denied".
Status errno_status(int err, const std::string& action);

// A value or the reason why there is none. `value()` on an error ends the process (our bug).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return value_.value(); }
  const T& value() const& { return value_.value(); }
  T&& value() && { return std::move(value_).value(); }
  T* operator->() { return &value_.value(); }
  const T* operator->() const { return &value_.value(); }
  T& operator*() & { return value_.value(); }
  const T& operator*() const& { return value_.value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)
// CHECK_OK(expr): returns the Status of `expr` from the current function when it is an error.
#define CHECK_OK(expr)                                     \
  do {                                                     \
    if (::tandem::Status status_ = (expr); !status_.ok()) return status_; \
  } while (false)
// CHECK_ASSIGN(auto x, result_expr): x = value, or return the Status.
#define CHECK_ASSIGN(lhs, expr)                                              \
  auto TANDEM_CONCAT(result_, __LINE__) = (expr);                            \
  if (!TANDEM_CONCAT(result_, __LINE__).ok())                                \
    return TANDEM_CONCAT(result_, __LINE__).status();                        \
  lhs = std::move(TANDEM_CONCAT(result_, __LINE__)).value()

}  // namespace tandem
