// What the verbs make of their options, and of bytes from a server.
#include <catch2/catch.hpp>

#include "base/config.h"
#include "ctl/http_client.h"
#include "ctl/sse_parser.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

TEST_CASE("serve: options become settings that tandemd takes, --set last") {
  ServeOptions o;
  o.model = "/m/a b=c.gguf";
  o.port = 0;
  o.state_dir = "/s";
  o.config_file = "/c.toml";
  o.settings = {"log.flush_ms=50", "paths.cache_dir=/elsewhere"};
  const std::vector<std::string> args = tandemd_arguments(o);
  REQUIRE(args.size() == 14);
  CHECK(args[0] == "--config");
  CHECK(args[1] == "/c.toml");
  Config config;
  for (size_t i = 2; i < args.size(); i += 2) {
    CHECK(args[i] == "--set");
    const Status status = config_set(args[i + 1], &config);
    INFO(status.message());
    CHECK(status.ok());
  }
  CHECK(config.model_path == "/m/a b=c.gguf");
  CHECK(config.server_listen == "127.0.0.1:0");
  CHECK(config.paths_state_dir == "/s");
  CHECK(config.paths_cache_dir == "/elsewhere");
  CHECK(config.log_flush_ms == 50);
  CHECK(tandemd_arguments({}).empty());
}

TEST_CASE("serve: relative paths become whole ones") {
  ServeOptions o;
  o.model = "m.gguf";
  CHECK(tandemd_arguments(o)[1].rfind("model.path=/", 0) == 0);
}

TEST_CASE("parts of a split model by name") {
  CHECK(model_parts("a.gguf") == std::vector<std::string>{"a.gguf"});
  CHECK(model_parts("d/a-00001-of-00003.gguf") ==
        std::vector<std::string>{"d/a-00001-of-00003.gguf", "d/a-00002-of-00003.gguf",
                                 "d/a-00003-of-00003.gguf"});
  for (const char* single :
       {"a-00002-of-00003.gguf", "a-00001-of-00001.gguf", "-00001-of-00002.gguf", "a-1-of-2.gguf",
        "a-00001-of-00002.ggufx", "a-00001-of-0000x.gguf"}) {
    CHECK(model_parts(single) == std::vector<std::string>{single});
  }
}

TEST_CASE("files that cannot be opened are named") {
  CHECK(open_file("/nonexistent/x.gguf").status().message().find("/nonexistent/x.gguf") !=
        std::string::npos);
  CHECK(open_file("/tmp").status().message().find("directory") != std::string::npos);
}

TEST_CASE("sse: events over any cut of the bytes") {
  const std::string stream =
      ": keep-alive\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata: two\ndata: "
      "lines\n\ndata:[DONE]\n\nid: 4\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "two\nlines", "[DONE]"};
  for (size_t cut = 1; cut <= stream.size(); ++cut) {
    SseParser parser;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size(); at += cut) {
      for (auto& event : parser.feed(std::string_view(stream).substr(at, cut)))
        events.push_back(event);
    }
    CHECK(events == expected);
  }
}

TEST_CASE("url: host and port are kept, a path is taken off") {
  CHECK(*normal_url("http://127.0.0.1:8080/v1/") == "http://127.0.0.1:8080");
  CHECK(*normal_url("localhost:1") == "http://localhost:1");
  CHECK(*normal_url("http://[::1]:80") == "http://[::1]:80");
  CHECK(*normal_url("https://box.example") == "https://box.example");
  for (const char* bad : {"", "http://", "/v1", "http://a b", "http://a\r\nX: y"})
    CHECK_FALSE(normal_url(bad).ok());
}

TEST_CASE("refusals show the server's own words") {
  CHECK(describe_refusal({400, R"({"error":{"message":"too long","type":"x"}})"}) ==
        "the server answers 400: too long");
  CHECK(describe_refusal({502, "<html>"}).find("502") != std::string::npos);
  CHECK(describe_refusal({500, R"({"error":null})"}).find("500") != std::string::npos);
  CHECK(percent_encode("a b&c=ü") == "a%20b%26c%3D%C3%BC");
}

TEST_CASE("nobody there: says what to do") {
  const auto answer = http_get({"http://127.0.0.1:1", ""}, "/health");
  CHECK(answer.status().code() == StatusCode::kUnavailable);
  CHECK(answer.status().message().find("tandem serve --model") != std::string::npos);
}

}  // namespace tandem::ctl
