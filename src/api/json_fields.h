// Reads the members of one JSON object against stated bounds. The first problem is kept and every later read
// returns its default, so that a reader is a list of fields. `null` counts as absent. Confined to one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/json_value.h"

namespace tandem::api {

struct NumberRange {
  double min, max;
  bool min_excluded = false;
};

class JsonFields {
 public:
  // `prefix` goes before names in messages: "messages[2].". `object` must outlive this.
  JsonFields(const JsonObject& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  const JsonValue* take(std::string_view name);  // nullptr: absent or null
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t min, int64_t max);  // 3.0 is an integer too
  std::optional<double> number(std::string_view name, NumberRange range);
  std::optional<std::string> string(std::string_view name);

  // Keeps the first error only.
  void fail(std::string_view name, std::string rest);  // message: "`name` " + rest; param: name
  void fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }
  std::string path(std::string_view name) const { return prefix_ + std::string(name); }
  // Members nobody asked for, fit for a header: printable names, at most 64 characters each.
  std::vector<std::string> not_taken() const;

 private:
  const JsonObject& object_;
  std::string prefix_;
  std::vector<std::string_view> taken_;
  std::optional<ApiError> error_;
};

std::string number_text(double value);
// `name` if it is a harmless word (letters, digits, `_ - . [ ]`, at most 64), else "?": safe to repeat.
std::string safe_word(std::string_view name);

}  // namespace tandem::api
