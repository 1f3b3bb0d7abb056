// Who may call what: keys, hosts, origins, binding (field case C-54).
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <thread>

#include "api/keys.h"
#include "api/listen_socket.h"
#include "server_fixture.h"
#include "temp_file.h"

namespace tandem::api {
namespace {

std::string with_key(const std::string& key) { return key.empty() ? "" : "Authorization: Bearer " + key + "\r\n"; }

}  // namespace

TEST_CASE("access: endpoint x key matrix") {
  TempFile users("# users\nalice:" + sha256_of_text("alice-key") + "\nbob:" + sha256_of_text("bob-key") + ":low\n");
  TempFile admin(sha256_of_text("admin-key") + "\n");
  ServerFixture f;
  f.config.auth_user_keys_file = users.path;
  f.config.auth_admin_key_file = admin.path;
  f.config.server_metrics_need_key = GENERATE(false, true);
  int port = f.start();
  struct Row {
    std::string request_path;
    int none, user, admin;
  };
  int metrics_none = f.config.server_metrics_need_key ? 401 : 200;
  for (const Row& row : {Row{"/health", 200, 200, 200}, Row{"/ready", 200, 200, 200}, Row{"/metrics", metrics_none, 200, 200},
                         Row{"/v1/models", 401, 200, 200}, Row{"/v1/models/fake-model", 401, 200, 200},
                         Row{"/v1/requests", 401, 403, 200}, Row{"/status.json", 401, 403, 200}}) {
    INFO(row.request_path);
    CHECK(fetch(port, get(row.request_path)).status == row.none);
    CHECK(fetch(port, get(row.request_path, with_key("alice-key"))).status == row.user);
    CHECK(fetch(port, get(row.request_path, with_key("admin-key"))).status == row.admin);
    for (const char* wrong : {"alice-ke", "alice-keyX", "ALICE-KEY", "x"})
      CHECK(fetch(port, get(row.request_path, with_key(wrong))).status == row.none);
    CHECK(fetch(port, get(row.request_path + "?key=alice-key&api_key=admin-key")).status ==
          (row.none == 200 || row.request_path != "/v1/requests" ? row.none : 401));
  }
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/apply-template"}) {
    RawReply reply = fetch(port, post(path, "{}"));
    CHECK(reply.status == 401);
    CHECK(reply.headers["www-authenticate"] == "Bearer");
    CHECK(str(json(reply.body), "error", "code") == "invalid_api_key");
    CHECK(str(json(reply.body), "error", "type") == "authentication_error");
  }
  CHECK(fetch(port, get("/v1/models", "Authorization: Basic alice-key\r\n")).status == 401);
  CHECK(fetch(port, get("/v1/models", "Authorization: bearer  alice-key\r\n")).status == 200);
  REQUIRE(f.service.rejected().size() == 2);  // refused inference requests have their rows
  for (const auto& row : f.service.rejected()) CHECK(row.error.find("key") != std::string::npos);
}

TEST_CASE("access: the key names the client and caps its priority") {
  TempFile users("alice:" + sha256_of_text("a") + "\nbob:" + sha256_of_text("b") + ":low\n");
  ServerFixture f;
  f.config.auth_user_keys_file = users.path;
  int port = f.start();
  auto ask = [&](const char* key, const std::string& body_priority, const std::string& header_priority) {
    std::string body = R"({"prompt":"a")" + (body_priority.empty() ? "" : ",\"priority\":\"" + body_priority + "\"") + "}";
    std::string headers = with_key(key) + (header_priority.empty() ? "" : "X-Priority: " + header_priority + "\r\n");
    return fetch(port, post("/v1/completions", body, headers));
  };
  CHECK(ask("a", "", "").status == 200);
  CHECK(f.service.last_request().client == "alice");
  CHECK(f.service.last_request().priority == ipc::Priority::kNormal);
  CHECK(ask("a", "", "high").status == 200);
  CHECK(f.service.last_request().priority == ipc::Priority::kHigh);
  CHECK(ask("a", "low", "high").status == 200);  // the body wins
  CHECK(f.service.last_request().priority == ipc::Priority::kLow);
  CHECK(ask("a", "", "urgent").status == 400);
  CHECK(ask("b", "", "").status == 200);
  CHECK(f.service.last_request().priority == ipc::Priority::kLow);
  RawReply refused = ask("b", "high", "");
  CHECK(refused.status == 403);
  CHECK(str(json(refused.body), "error", "code") == "priority_not_allowed");
  CHECK(ask("b", "", "normal").status == 403);
  f.service.script = [](const GenerateRequest&) -> ApiResult<Script> { return api_error("queue_full", "full", "", 3); };
  CHECK(ask("a", "low", "").status == 429);
  CHECK(f.service.rejected().back().priority == "low");
  CHECK(f.service.rejected().back().client == "alice");
}

TEST_CASE("access: keys are read again, and a bad file keeps the old ones") {
  TempFile users("alice:" + sha256_of_text("a") + "\n");
  ServerFixture f;
  f.config.auth_user_keys_file = users.path;
  int port = f.start();
  CHECK(fetch(port, get("/v1/models", with_key("a"))).status == 200);
  users.write("bob:" + sha256_of_text("b") + "\n");
  CHECK(f.server->reload_files().ok());
  CHECK(fetch(port, get("/v1/models", with_key("a"))).status == 401);
  CHECK(fetch(port, get("/v1/models", with_key("b"))).status == 200);
  users.write("bob:secret-in-plain\n");
  Status bad = f.server->reload_files();
  CHECK(!bad.ok());
  CHECK(bad.message().find(":1:") != std::string::npos);
  CHECK(bad.message().find("secret") == std::string::npos);
  CHECK(fetch(port, get("/v1/models", with_key("b"))).status == 200);
}

TEST_CASE("access: key files") {
  const std::string digest(64, 'a');
  CHECK(parse_key_file("", "keys", false).value().empty());
  CHECK(parse_key_file("# c\n\n  \na:" + digest + ":normal\r\n", "keys", false).value().at(0).highest == ipc::Priority::kNormal);
  CHECK(parse_key_file(digest, "admin", true).value().at(0).name == "admin");
  for (const std::string& bad : std::vector<std::string>{digest, "a:" + digest + ":urgent", "a:b", "a b:" + digest, ":" + digest, "a:" + digest + "0",
                                 "a:" + digest + "\na:" + digest, "a:" + digest + ":low:x"})
    CHECK(!parse_key_file(bad, "keys", false).ok());
  Config config;
  config.auth_user_keys_file = "/nonexistent/keys";
  CHECK(!KeyRing(config).reload().ok());
}

TEST_CASE("access: Host is checked against DNS rebinding") {
  ServerFixture f;
  f.config.server_allowed_hosts = "device.lan Other.Example:9000";
  int port = f.start();
  auto ask = [&](const std::string& host) {
    return fetch(port, "GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n").status;
  };
  for (const char* good : {"localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:80", "device.lan",
                           "DEVICE.lan.:8080", "other.example"})
    CHECK(ask(good) == 200);
  for (const char* bad : {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7",
                          "", "[::2]", "device.lan.evil", "["})
    CHECK(ask(bad) == 403);
  CHECK(fetch(port, "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n").status == 403);
}

TEST_CASE("access: origins and CORS") {
  ServerFixture f;
  SECTION("off by default") {
    int port = f.start();
    for (const char* origin : {"https://evil.example", "null"}) {
      RawReply reply = fetch(port, post("/v1/completions", R"({"prompt":"a"})", "Origin: " + std::string(origin) + "\r\n"));
      CHECK(reply.status == 403);
      CHECK(reply.headers.count("access-control-allow-origin") == 0);
      RawReply preflight = fetch(port, "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: " + std::string(origin) +
                                           "\r\nAccess-Control-Request-Method: POST\r\n\r\n");
      CHECK(preflight.headers.count("access-control-allow-origin") == 0);
    }
    CHECK(f.service.n_submitted == 0);
    CHECK(fetch(port, post("/v1/completions", R"({"prompt":"a"})", "Origin: http://localhost\r\n")).status == 200);  // own page
  }
  SECTION("one origin") {
    f.config.server_cors_origin = "https://app.example";
    int port = f.start();
    RawReply preflight = fetch(port, "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example\r\n"
                                     "Access-Control-Request-Method: POST\r\n\r\n");
    CHECK(preflight.status == 200);
    CHECK(preflight.headers["access-control-allow-origin"] == "https://app.example");
    CHECK(preflight.headers["access-control-allow-headers"].find("Authorization") != std::string::npos);
    CHECK(preflight.headers.count("access-control-allow-credentials") == 0);
    RawReply reply = fetch(port, post("/v1/completions", R"({"prompt":"a"})", "Origin: https://app.example\r\n"));
    CHECK(reply.status == 200);
    CHECK(reply.headers["access-control-allow-origin"] == "https://app.example");
    CHECK(reply.headers["vary"] == "Origin");
    CHECK(fetch(port, post("/v1/completions", R"({"prompt":"a"})", "Origin: https://evil.example\r\n")).status == 403);
  }
}

TEST_CASE("access: a socket others can reach needs a key or the owner's word") {
  FakeService service;
  Config config;
  config.server_listen = "0.0.0.0:0";
  auto refused = ApiServer::start(config, &service);
  REQUIRE(!refused.ok());
  CHECK(refused.status().message().find("allow_unauthenticated") != std::string::npos);
  // An inherited socket is judged by what it is bound to, not by server.listen.
  config.server_listen = "127.0.0.1:0";
  auto inherited = ApiServer::start(config, &service, {std::move(listen_on("0.0.0.0:0").value())});
  CHECK(!inherited.ok());
  config.server_listen = "0.0.0.0:0";
  {
    TempFile users("alice:" + sha256_of_text("a") + "\n");
    Config with_keys = config;
    with_keys.auth_user_keys_file = users.path;
    auto started = ApiServer::start(with_keys, &service);
    REQUIRE(started.ok());
    CHECK(fetch(started.value()->port(), get("/v1/models")).status == 401);
    CHECK(fetch(started.value()->port(), "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n").status == 403);
    CHECK(fetch(started.value()->port(), "GET /health HTTP/1.1\r\nHost: 192.0.2.7:8080\r\n\r\n").status == 200);
    users.write("");
    CHECK(!started.value()->reload_files().ok());  // would open the service to everybody
    CHECK(fetch(started.value()->port(), get("/v1/models")).status == 401);
  }
  config.server_allow_unauthenticated = true;
  auto open = ApiServer::start(config, &service);
  REQUIRE(open.ok());
  CHECK(fetch(open.value()->port(), get("/v1/models")).status == 200);
}

TEST_CASE("access: limits of a key") {
  KeyLimits limits;
  constexpr int64_t kSecond = 1'000'000;
  {
    auto first = limits.take("a", {1, 0}, 0);
    REQUIRE(first.ok());
    auto second = limits.take("a", {1, 0}, 0);
    REQUIRE(!second.ok());
    CHECK(second.error().code == "key_limit_exceeded");
    CHECK(limits.take("b", {1, 0}, 0).ok());
  }
  CHECK(limits.take("a", {1, 0}, 0).ok());
  for (int i = 0; i < 6; ++i) CHECK(limits.take("m", {0, 6}, 0).ok());
  CHECK(!limits.take("m", {0, 6}, 9 * kSecond).ok());
  CHECK(limits.take("m", {0, 6}, 10 * kSecond).ok());
  CHECK(!limits.take("m", {0, 6}, 11 * kSecond).ok());
  CHECK(limits.take("m", {0, 6}, 3600 * kSecond).ok());

  const std::string hash = sha256_of_text("k");
  auto keys = parse_key_file("a:" + hash + ":low:running=2:per_minute=60:filtered\n", "keys", false);
  REQUIRE(keys.ok());
  CHECK((*keys)[0].limit.max_running == 2);
  CHECK((*keys)[0].limit.max_per_minute == 60);
  CHECK((*keys)[0].highest == ipc::Priority::kLow);
  CHECK((*keys)[0].is_filtered == true);
  for (const char* bad : {"running=0", "running=", "running=-1", "per_minute=1000001", "per_minute=99999999", "fast", ""})
    CHECK(!parse_key_file("a:" + hash + ":" + bad + "\n", "keys", false).ok());

  TempFile users("alice:" + sha256_of_text("a") + ":per_minute=1\nbob:" + sha256_of_text("b") + "\n");
  ServerFixture f;
  f.config.auth_user_keys_file = users.path;
  int port = f.start();
  auto ask = [&](const char* key) {
    return fetch(port, post("/v1/completions", R"({"prompt":"a"})", std::string("Authorization: Bearer ") + key + "\r\n"));
  };
  CHECK(ask("a").status == 200);
  auto refused = ask("a");
  CHECK(refused.status == 429);
  CHECK(refused.headers["retry-after"] == "60");
  CHECK(ask("b").status == 200);
  CHECK(fetch(port, get("/v1/models", "Authorization: Bearer a\r\n")).status == 200);  // costs nobody a computation
}

TEST_CASE("access: a socket handed over by systemd") {
  FakeService service;
  Config config;
  UniqueFd socket = listen_on("127.0.0.1:0").value();
  fcntl(socket.get(), F_SETFL, 0);  // as systemd hands it over
  auto inherit = [&] { return ApiServer::start(config, &service, {UniqueFd(dup(socket.get()))}); };
  int port = bound_address(socket.get()).value().port;
  config.server_listen = "localhost:" + std::to_string(port);
  {
    auto first = inherit();
    REQUIRE(first.ok());
    for (int i = 0; i < 3; ++i) CHECK(fetch(port, get("/health")).status == 200);
    first.value()->hand_over();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    // Refused by nobody, answered by the successor.
    auto waiting = std::async(std::launch::async, [&] { return fetch(port, get("/health")).status; });
    CHECK(waiting.wait_for(std::chrono::milliseconds(300)) == std::future_status::timeout);
    auto second = inherit();
    REQUIRE(second.ok());
    CHECK(waiting.get() == 200);
  }
  config.server_listen = "127.0.0.1:9";
  auto other = inherit();
  REQUIRE(!other.ok());
  CHECK(other.status().code() == StatusCode::kInvalidArgument);
  for (const std::string& part : {std::string("127.0.0.1:9"), "127.0.0.1:" + std::to_string(port), std::string("tandem configure listen")})
    CHECK(other.status().message().find(part) != std::string::npos);
}

TEST_CASE("access: listening addresses") {
  for (const char* bad : {"", "8080", "127.0.0.1", "127.0.0.1:", ":8080", "127.0.0.1:99999", "127.0.0.1:x", "no such host:1"})
    CHECK(!listen_on(bad).ok());
  auto first = listen_on("127.0.0.1:0");
  REQUIRE(first.ok());
  BoundAddress bound = bound_address(first.value().get()).value();
  CHECK(bound.port > 0);
  CHECK(bound.is_loopback);
  auto second = listen_on(bound.text());  // taken, not shared
  REQUIRE(!second.ok());
  CHECK(second.status().message().find(bound.text()) != std::string::npos);
}

}  // namespace tandem::api
