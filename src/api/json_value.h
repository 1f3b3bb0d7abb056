// A parsed JSON body and the guard that parses it. The parser does not recurse; depth, number of values,
// duplicate keys and every string are checked while parsing. Pure; never throws on foreign bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "api/api_error.h"

namespace tandem::api {

constexpr int kMaxJsonDepth = 64;
constexpr size_t kMaxJsonValues = 1'000'000;

class JsonValue;
using JsonArray = std::vector<JsonValue>;
using JsonObject = std::vector<std::pair<std::string, JsonValue>>;

class JsonValue {
 public:
  JsonValue() = default;
  template <typename T>
  explicit JsonValue(T value) : content_(std::move(value)) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(content_); }
  // nullptr when the value is of another kind. Integers outside int64 are doubles.
  const bool* as_bool() const { return std::get_if<bool>(&content_); }
  const int64_t* as_integer() const { return std::get_if<int64_t>(&content_); }
  const double* as_double() const { return std::get_if<double>(&content_); }
  const std::string* as_string() const { return std::get_if<std::string>(&content_); }
  const JsonArray* as_array() const { return std::get_if<JsonArray>(&content_); }
  const JsonObject* as_object() const { return std::get_if<JsonObject>(&content_); }
  JsonArray* as_array() { return std::get_if<JsonArray>(&content_); }
  JsonObject* as_object() { return std::get_if<JsonObject>(&content_); }
  const JsonValue* find(std::string_view key) const;  // in an object; nullptr: absent
  const char* kind() const;                           // "a number", "an object", … for messages

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, JsonArray, JsonObject> content_;
};

// 400 "invalid_json" for everything that is not one JSON value in valid UTF-8 without a byte order mark, for
// NUL characters (also as \u0000), lone surrogates, numbers beyond double, keys given twice (which one wins
// differs between parsers, so neither does), more than kMaxJsonDepth levels or kMaxJsonValues values.
ApiResult<JsonValue> parse_json(std::string_view bytes);

}  // namespace tandem::api
