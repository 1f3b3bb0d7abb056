#include "base/log.h"
#include "base/config.h"
#include <catch2/catch.hpp>
using namespace tandem;
TEST_CASE("a log line is key=value with quoting") {
  REQUIRE(log_format("event", {{"a", 1}, {"b", "x y\n\"q\""}, {"c", ""}}) == "event a=1 b=\"x y\\n\\\"q\\\"\" c=\"\"");
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
