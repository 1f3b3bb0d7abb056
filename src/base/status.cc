#include "base/status.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace tandem {

const char* status_code_name(StatusCode code) {
  static constexpr const char* kNames[] = {
      "OK",        "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "FAILED_PRECONDITION",
      "EXHAUSTED", "UNAVAILABLE",      "DEADLINE",  "CANCELLED",         "DATA_LOSS",
      "UNIMPLEMENTED", "INTERNAL"};
  return kNames[static_cast<int>(code)];
}

std::string Status::to_string() const {
  if (ok()) return "OK";
  return std::string(status_code_name(code_)) + ": " + message_;
}

Status errno_status(int err, const std::string& action) {
  StatusCode code = StatusCode::kInternal;
  if (err == ENOENT || err == ENOTDIR) code = StatusCode::kNotFound;
  if (err == EACCES || err == EPERM || err == EROFS) code = StatusCode::kPermissionDenied;
  if (err == ENOSPC || err == ENOMEM || err == EMFILE || err == ENFILE || err == EDQUOT)
    code = StatusCode::kExhausted;
  if (err == EISDIR || err == ELOOP || err == ENAMETOOLONG) code = StatusCode::kInvalidArgument;
  char text[256];
  return {code, action + ": " + strerror_r(err, text, sizeof text)};
}

void check_failed(const char* expression, const char* file, int line, const char* text) {
  std::fprintf(stderr, "<2>CHECK failed expression=\"%s\" at=%s:%d detail=\"%s\"\n", expression, file,
               line, text);
  std::abort();
}

}  // namespace tandem
