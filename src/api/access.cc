#include "api/access.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace tandem::api {
namespace {

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return text;
}

// "Example.org.:8080" -> "example.org", "[::1]:80" -> "::1".
std::string host_without_port(const std::string& value) {
  std::string host = lower(value);
  if (!host.empty() && host[0] == '[') return host.substr(1, host.find(']') - 1);
  host = host.substr(0, host.find(':'));
  if (!host.empty() && host.back() == '.') host.pop_back();
  return host;
}

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

std::string allowed_methods(const std::vector<const Route*>& found) {
  std::string methods;
  for (const Route* route : found)
    methods += std::string(route->method) + (std::string_view(route->method) == "GET" ? ", HEAD, " : ", ");
  return methods + "OPTIONS";
}

HttpReply preflight(const std::vector<const Route*>& found) {
  HttpReply reply;
  reply.headers.emplace_back("Allow", allowed_methods(found));
  return reply;
}

// A browser's answer to our Basic challenge, "Basic base64(name:key)", as the Bearer header it stands for; "" if
// it isn't one. The name is free.
std::string bearer_of_basic(const std::string& header) {
  if (lower(header.substr(0, 6)) != "basic ") return "";
  std::string code = header.substr(header.find_first_not_of(' ', 5));
  if (code.empty() || code.size() % 4 != 0 || code.size() > 1024) return "";
  std::string plain(code.size(), '\0');
  int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(plain.data()), reinterpret_cast<const unsigned char*>(code.data()),
                          static_cast<int>(code.size()));
  if (n < 0) return "";
  plain.resize(static_cast<size_t>(n));
  while (!plain.empty() && plain.back() == 0) plain.pop_back();  // padding
  size_t colon = plain.find(':');
  return colon == std::string::npos ? "" : "Bearer " + plain.substr(colon + 1);
}

HttpReply refused_reply(ApiError error, Access access) {
  HttpReply reply = error_reply(std::move(error));
  if (reply.status != 401 || access != Access::kStatus) return reply;
  for (auto& [name, value] : reply.headers)
    if (name == "WWW-Authenticate") value = "Basic realm=\"Tandem: any name, and a key as password\", charset=\"UTF-8\"";
  return reply;
}

std::optional<ApiError> check_content_type(const HttpRequest& request) {
  if (request.method != "POST") return std::nullopt;
  const std::string* type = request.header("content-type");
  std::string kind = type == nullptr ? "" : lower(type->substr(0, type->find_first_of("; \t")));
  if (kind == "application/json") return std::nullopt;
  return api_error("invalid_value", "header `Content-Type` must be application/json", "Content-Type");
}

}  // namespace

bool is_loopback_peer(std::string_view addr) {
  return addr.substr(0, 4) == "127." || addr == "::1" || addr.substr(0, 11) == "::ffff:127.";
}

AccessRules::AccessRules(const Config& config, const BoundAddress& bound, const KeyRing* keys)
    : bound_(bound),
      cors_origin_(config.server_cors_origin),
      metrics_need_key_(config.server_metrics_need_key),
      status_need_key_(config.server_status_need_key),
      hosts_{"localhost", "127.0.0.1", "::1", lower(bound.host)},
      keys_(keys) {
  std::istringstream names(config.server_allowed_hosts);
  for (std::string name; names >> name;) hosts_.push_back(host_without_port(name));
  char name[256] = "";
  if (!bound.is_loopback && gethostname(name, sizeof name - 1) == 0 && name[0] != 0) {
    hosts_.push_back(lower(name));
    hosts_.push_back(lower(name) + ".local");
  }
}

// A page of a foreign site reaches us under its own name (DNS rebinding); literal addresses can't be rebound.
bool AccessRules::is_host_allowed(const HttpRequest& request) const {
  const std::string* header = request.header("host");
  if (header == nullptr) return true;  // HTTP/1.0: no browser
  std::string host = host_without_port(*header);
  if (std::find(hosts_.begin(), hosts_.end(), host) != hosts_.end()) return true;
  return !bound_.is_loopback && is_address(host);
}

bool AccessRules::is_origin_allowed(const HttpRequest& request) const {
  const std::string* origin = request.header("origin");
  if (origin == nullptr || cors_origin_ == "*" || *origin == cors_origin_) return true;
  const std::string* host = request.header("host");
  return host != nullptr && (lower(*origin) == "http://" + lower(*host) || lower(*origin) == "https://" + lower(*host));
}

std::optional<ApiError> AccessRules::check_key(HttpRequest* request, Access access) const {
  const std::string* header = request->header("authorization");
  std::optional<Identity> identity = header == nullptr ? std::nullopt : keys_->identify(*header);
  if (!identity && header != nullptr && access == Access::kStatus) identity = keys_->identify(bearer_of_basic(*header));
  if (identity) {
    request->client = identity->name;
    request->highest_priority = identity->highest;
    request->is_filtered = identity->is_filtered;
    request->key_limit = identity->limit;
  }
  bool needs_key = access == Access::kAdmin ? keys_->has_keys()
                   : access == Access::kOpen ? false
                   : access == Access::kMetrics ? metrics_need_key_ && keys_->has_keys()
                   : access == Access::kStatus ? status_need_key_ && keys_->has_keys()
                                                : keys_->has_user_keys();
  if (!needs_key) {
    if (access == Access::kAdmin && !is_loopback_peer(request->remote_addr))
      return api_error("forbidden", "without keys this path is for clients on the same machine only");
    return std::nullopt;
  }
  if (!identity)
    return api_error("invalid_api_key", header == nullptr ? "this path needs a key: Authorization: Bearer KEY"
                                                          : "the key is not known here");
  if (access == Access::kAdmin && !identity->is_admin)
    return api_error("forbidden", keys_->has_admin_keys() ? "this path needs the admin key"
                                                          : "this path needs an admin key, and none is set (auth.admin_key_file)");
  return std::nullopt;
}

std::optional<HttpReply> AccessRules::check(HttpRequest* request) const {
  if (!is_host_allowed(*request))
    return error_reply(api_error("host_not_allowed",
                                 "header `Host` names a host this server does not answer to; see server.allowed_hosts",
                                 "Host"));
  auto found = find_routes(request->path);
  if (request->method == "OPTIONS" && (request->path == "*" || !found.empty())) return preflight(found);
  if (found.empty())
    return error_reply(api_error("unknown_url", "this path does not exist; see GET /v1/models for a start"));
  std::string method = request->method == "HEAD" ? "GET" : request->method;
  auto match = std::find_if(found.begin(), found.end(), [&](const Route* r) { return method == r->method; });
  if (match == found.end()) {
    HttpReply reply = error_reply(api_error("method_not_allowed", "this path takes " + allowed_methods(found)));
    reply.headers.emplace_back("Allow", allowed_methods(found));
    return reply;
  }
  const Route& route = **match;
  if (route.access != Access::kOpen && !is_origin_allowed(*request))
    return error_reply(api_error("origin_not_allowed",
                                 "web pages of this origin may not use this server; see server.cors_origin", "Origin"));
  if (auto error = check_key(request, route.access)) return refused_reply(*error, route.access);
  if (auto error = check_content_type(*request)) return error_reply(*error);
  return std::nullopt;
}

void AccessRules::add_cors_headers(const HttpRequest& request, HttpReply* reply) const {
  const std::string* origin = request.header("origin");
  if (cors_origin_.empty()) return;
  reply->headers.emplace_back("Vary", "Origin");
  if (origin == nullptr || (cors_origin_ != "*" && *origin != cors_origin_)) return;
  reply->headers.emplace_back("Access-Control-Allow-Origin", cors_origin_);
  reply->headers.emplace_back("Access-Control-Expose-Headers",
                              "X-Request-Id, X-Tandem-Degraded, X-Tandem-Ignored, Retry-After");
  if (request.method != "OPTIONS") return;
  reply->headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  reply->headers.emplace_back("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Priority");
  reply->headers.emplace_back("Access-Control-Max-Age", "600");
}

}  // namespace tandem::api
