// The table of endpoints and who may call them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/endpoints.h"

namespace tandem::api {

enum class Access {
  kOpen,     // anybody who reaches the socket
  kMetrics,  // as server.metrics_need_key says
  kStatus,   // as server.status_need_key says; a browser asks for the key (HTTP Basic)
  kUser,     // a user or admin key, where user keys exist
  kAdmin,    // the admin key where keys exist, else loopback clients only
};

struct Route {
  const char* method;
  const char* path;       // ending in /*: any rest
  HttpReply (*handler)(const ApiContext&, HttpRequest&);
  Access access;
  const char* endpoint;   // name in the request log; null: not an inference request
  bool is_probe = false;  // answered by reserved threads
};

const std::vector<Route>& routes();
// Routes whose path fits, whatever the method.
std::vector<const Route*> find_routes(std::string_view path);
bool is_probe_path(std::string_view path);
bool is_documented(const Route& route);  // has its row in endpoint_openapi.cc

}  // namespace tandem::api
