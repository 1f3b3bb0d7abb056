#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/log.h"
using namespace tandem;
TEST_CASE("a log line is key=value with quoting") {
  REQUIRE(log_format("event", {{"a", 1}, {"b", "x y\n\"q\""}, {"c", ""}}) ==
          "event a=1 b=\"x y\\n\\\"q\\\"\" c=\"\"");
}
TEST_CASE("configuration errors name file, line, key, value and range") {
  Config c;
  REQUIRE(config_load_text("[server]\nmax_connections = 16\n", "f.toml", &c).ok());
  REQUIRE(c.server_max_connections == 16);
  Status s = config_load_text("[server]\nmax_connections = 1\n", "f.toml", &c);
  REQUIRE(s.message() == "f.toml:2: server.max_connections must be from 8 to 65536, got 1");
  REQUIRE_FALSE(config_load_text("[server]\nport = 1\n", "f.toml", &c).ok());
  REQUIRE_FALSE(config_load_text("[server\n", "f.toml", &c).ok());
  REQUIRE(config_set("model.path=/a b/c.gguf", &c).ok());
  REQUIRE(c.model_path == "/a b/c.gguf");
  Config d;
  REQUIRE(config_load_text(config_to_toml(c), "copy", &d).ok());
  REQUIRE(config_to_toml(d) == config_to_toml(c));
}

TEST_CASE("weights.lean is a word or an absolute path") {
  Config c;
  for (const char* value : {"nested", "off", "/models/a b.gguf"}) {
    c.weights_lean = value;
    CHECK(config_validate(c).ok());
    CHECK(config_has_lean_file(c) == (value[0] == '/'));
  }
  for (const std::string value : {"", "lean.gguf", "./lean.gguf", "Nested"}) {
    c.weights_lean = value;
    CHECK(config_validate(c).message() ==
          "weights.lean must be \"nested\", \"off\" or the absolute path of a GGUF file, got \"" + value + "\"");
  }
}

TEST_CASE("log_flush returns once the lines are written, from several threads at once") {
  // A pipe in place of stderr: what was logged before log_flush is there after it.
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  int saved = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  log_init("test", LogLevel::kInfo);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 5; ++i) {
        log_info("flush test " + std::to_string(t), {{"i", i}});
        log_flush();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  log_debug("below the level");
  log_error("last line", {{"text", "a \"b\""}});
  log_flush();
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(ends[1]);
  std::string text(65536, '\0');
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, read(ends[0], text.data(), text.size()))));
  close(ends[0]);
  CHECK(std::count(text.begin(), text.end(), '\n') == 21);
  CHECK(text.find("<3>last line text=\"a \\\"b\\\"\" process=test\n") != std::string::npos);
  CHECK(text.find("below") == std::string::npos);
}
