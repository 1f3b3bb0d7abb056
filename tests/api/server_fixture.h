// A running ApiServer on a free loopback port over a FakeService.
#pragma once

#include <catch2/catch.hpp>
#include <memory>

#include "api/api_server.h"
#include "api/json_value.h"
#include "fake_service.h"
#include "raw_client.h"

namespace tandem::api {

struct ServerFixture {
  FakeService service;
  Config config;
  std::unique_ptr<ApiServer> server;

  ServerFixture() { config.server_listen = "127.0.0.1:0"; }
  ~ServerFixture() { server.reset(); }  // before the service
  // Call after setting `config` and the service's script.
  int start() {
    auto started = ApiServer::start(config, &service);
    if (!started.ok()) FAIL(started.status().message());
    server = std::move(started.value());
    return server->port();
  }
};

inline JsonValue json(const std::string& text) {
  auto parsed = parse_json(text);
  if (!parsed.ok()) FAIL("not JSON: " << text);
  return std::move(parsed.value());
}
// Follows keys and indices: at(v, "choices", 0, "text").
inline const JsonValue& at(const JsonValue& v) { return v; }
template <typename... Rest>
const JsonValue& at(const JsonValue& v, const char* key, Rest... rest) {
  const JsonValue* found = v.find(key);
  if (found == nullptr) FAIL("no member " << key);
  return at(*found, rest...);
}
template <typename... Rest>
const JsonValue& at(const JsonValue& v, int index, Rest... rest) {
  if (v.as_array() == nullptr || v.as_array()->size() <= static_cast<size_t>(index)) FAIL("no element " << index);
  return at((*v.as_array())[static_cast<size_t>(index)], rest...);
}
template <typename... Path>
std::string str(const JsonValue& v, Path... path) {
  const JsonValue& found = at(v, path...);
  if (found.as_string() == nullptr) FAIL("not a string but " << found.kind());
  return *found.as_string();
}
template <typename... Path>
int64_t num(const JsonValue& v, Path... path) {
  const JsonValue& found = at(v, path...);
  if (found.as_integer() == nullptr) FAIL("not an integer but " << found.kind());
  return *found.as_integer();
}

constexpr const char* kChat = R"({"messages":[{"role":"user","content":"hi"}]})";
constexpr const char* kChatStream = R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";

}  // namespace tandem::api
