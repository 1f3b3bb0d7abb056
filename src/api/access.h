// Who may call what, decided from the request head: Host (DNS rebinding), Origin (web pages of others), key.
// Immutable after construction but for the keys; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/http_types.h"
#include "api/keys.h"
#include "api/listen_socket.h"
#include "api/routes.h"
#include "base/config.h"

namespace tandem::api {

class AccessRules {
 public:
  AccessRules(const Config& config, const BoundAddress& bound, const KeyRing* keys);

  // A reply ends the request: unknown host, path, method, origin or key, wrong content type, or a preflight.
  // Else the request's client and highest_priority are filled.
  std::optional<HttpReply> check(HttpRequest* request) const;
  void add_cors_headers(const HttpRequest& request, HttpReply* reply) const;

 private:
  bool is_host_allowed(const HttpRequest& request) const;
  bool is_origin_allowed(const HttpRequest& request) const;
  std::optional<ApiError> check_key(HttpRequest* request, Access access) const;

  const BoundAddress bound_;
  const std::string cors_origin_;
  const bool metrics_need_key_, status_need_key_;
  std::vector<std::string> hosts_;  // lower case, without port
  const KeyRing* keys_;
};

bool is_loopback_peer(std::string_view remote_addr);

}  // namespace tandem::api
