#include "api/routes.h"

namespace tandem::api {

const std::vector<Route>& routes() {
  static const std::vector<Route> table = {
      {"POST", "/v1/chat/completions", handle_chat, Access::kUser, "chat"},
      {"POST", "/v1/completions", handle_completions, Access::kUser, "completions"},
      {"GET", "/v1/models", handle_models, Access::kUser, nullptr},
      {"GET", "/v1/models/*", handle_model, Access::kUser, nullptr},
      {"POST", "/tokenize", handle_tokenize, Access::kUser, nullptr},
      {"POST", "/detokenize", handle_detokenize, Access::kUser, nullptr},
      {"POST", "/apply-template", handle_apply_template, Access::kUser, nullptr},
      {"GET", "/health", handle_health, Access::kOpen, nullptr, true},
      {"GET", "/ready", handle_ready, Access::kOpen, nullptr, true},
      {"GET", "/metrics", handle_metrics, Access::kMetrics, nullptr, true},
      {"GET", "/status", handle_status, Access::kStatus, nullptr},
      {"GET", "/status/events", handle_status_events, Access::kStatus, nullptr},
      {"POST", "/admin/drain", handle_admin, Access::kAdmin, nullptr},
      {"POST", "/admin/undrain", handle_admin, Access::kAdmin, nullptr},
      {"POST", "/admin/reload", handle_admin, Access::kAdmin, nullptr},
      {"POST", "/admin/restart-worker", handle_admin, Access::kAdmin, nullptr},
      {"POST", "/admin/degrade", handle_admin, Access::kAdmin, nullptr},
      {"GET", "/admin/config", handle_config, Access::kAdmin, nullptr},
      {"GET", "/admin/bundle", handle_bundle, Access::kAdmin, nullptr},
      {"GET", "/status.json", handle_status_json, Access::kAdmin, nullptr},
      {"GET", "/v1/requests", handle_requests, Access::kAdmin, nullptr},
      {"GET", "/openapi.json", handle_openapi, Access::kUser, nullptr},
  };
  return table;
}

std::vector<const Route*> find_routes(std::string_view path) {
  std::vector<const Route*> found;
  for (const Route& route : routes()) {
    std::string_view pattern = route.path;
    bool is_prefix = pattern.size() > 2 && pattern.substr(pattern.size() - 2) == "/*";
    if (is_prefix) pattern.remove_suffix(1);
    if (is_prefix ? path.size() > pattern.size() && path.substr(0, pattern.size()) == pattern : path == pattern)
      found.push_back(&route);
  }
  return found;
}

bool is_probe_path(std::string_view path) {
  for (const Route& route : routes())
    if (route.is_probe && path == route.path) return true;
  return false;
}

}  // namespace tandem::api
