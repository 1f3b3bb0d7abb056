// The request filter: the deny list in force, and which requests it is asked about. Off without filter.deny_list_file.
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "api/api_error.h"
#include "api/deny_list.h"
#include "api/http_types.h"
#include "base/config.h"

namespace tandem::api {

class RequestFilter {
 public:
  explicit RequestFilter(const Config& config);
  // Reads the file again; on an error the old list stays. Nothing to do when the filter is off.
  Status reload();
  // What the request's key says, else filter.all_clients. Always false while the filter is off.
  bool applies_to(const HttpRequest& http) const;
  // 403 `request_filtered` for a text that a rule denies: the answer names `param`, never the rule.
  std::optional<ApiError> check(const HttpRequest& http, std::string_view text, const std::string& param) const;

 private:
  const std::string file_;
  const bool all_clients_;
  mutable std::mutex mutex_;  // guards list_
  std::shared_ptr<const DenyList> list_;
};

}  // namespace tandem::api
