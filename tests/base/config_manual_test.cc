// firmware_config/tandem.toml is the manual: it must show every key with the program's own default and range.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/config.h"
using namespace tandem;

namespace {
// Waiting and running requests leave room for an arrival to be answered: with a displaced one's place, or with 429.
bool leaves_connections(const Config& c) {
  return c.limits_max_queue + c.batch_max_batch_size + 16 <= c.server_max_connections;
}
}  // namespace

TEST_CASE("a full queue leaves connections by default") { CHECK(leaves_connections(Config{})); }

TEST_CASE("every shipped profile loads, changes something, and is valid") {
  int n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TANDEM_SOURCE_DIR "/firmware_config/profiles")) {
    INFO(entry.path().string());
    Config config;
    const Status loaded = config_load_file(entry.path().string(), &config);
    INFO(loaded.message());
    REQUIRE(loaded.ok());
    const Status valid = config_validate(config);
    INFO(valid.message());
    REQUIRE(valid.ok());
    REQUIRE(config_to_toml(config) != config_to_toml(Config{}));
    CHECK(leaves_connections(config));
    ++n;
  }
  REQUIRE(n == 6);
}

TEST_CASE("tandem.toml shows every key with its default and range") {
  std::ifstream in(TANDEM_SOURCE_DIR "/firmware_config/tandem.toml");
  REQUIRE(in);
  std::stringstream text;
  text << in.rdbuf();
  std::string shipped = text.str(), active, section;
  // Uncommenting every default must load and change nothing.
  std::string line;
  std::istringstream lines(shipped);
  int n_keys = 0;
  while (std::getline(lines, line)) {
    if (line.rfind("#", 0) == 0 && line.find(" = ") != std::string::npos && line[1] != ' ')
      line = line.substr(1), ++n_keys;
    active += line + "\n";
  }
  Config from_manual, defaults;
  Status s = config_load_text(active, "tandem.toml", &from_manual);
  INFO(s.to_string());
  REQUIRE(s.ok());
  REQUIRE(config_to_toml(from_manual) == config_to_toml(defaults));
  REQUIRE(n_keys == static_cast<int>(config_keys().size()));
  for (const ConfigKey& key : config_keys()) {
    INFO(key.section << "." << key.name);
    REQUIRE(shipped.find("#" + std::string(key.name) + " = " + key.default_text) != std::string::npos);
    if (std::string(key.type) == "Int")
      REQUIRE(shipped.find("(" + std::to_string(key.min) + " to " + std::to_string(key.max) + ").\n#" + key.name) !=
              std::string::npos);
  }
}
