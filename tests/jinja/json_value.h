// Contexts from JSON files. Strings below "messages" are marked as input, as the server marks them.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "jinja/jinja.h"

namespace tandem::jinja {

inline Value to_value(const nlohmann::ordered_json& json, bool from_input = false) {
  if (json.is_null()) return Value::none();
  if (json.is_boolean()) return Value::boolean(json.get<bool>());
  if (json.is_number_integer()) return Value::integer(json.get<int64_t>());
  if (json.is_number()) return Value::real(json.get<double>());
  if (json.is_string()) return Value::text(json.get<std::string>(), from_input);
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) items.push_back(to_value(item, from_input));
    return Value::list(std::move(items));
  }
  std::vector<std::pair<std::string, Value>> items;
  for (const auto& [key, value] : json.items()) {
    items.emplace_back(key, to_value(value, from_input || key == "messages"));
  }
  return Value::dict(std::move(items));
}

inline std::string read_file(const std::string& name) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/jinja/" + name, std::ios::binary);
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

inline nlohmann::ordered_json read_json(const std::string& name) { return nlohmann::ordered_json::parse(read_file(name)); }

}  // namespace tandem::jinja
