#include "api/json_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::api {

std::string number_text(double value) {
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string safe_word(std::string_view name) {
  if (name.empty() || name.size() > 64) return "?";
  for (char c : name) {
    bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              std::string_view("_-.[]").find(c) != std::string_view::npos;
    if (!ok) return "?";
  }
  return std::string(name);
}

const JsonValue* JsonFields::take(std::string_view name) {
  for (const auto& [key, value] : object_) {
    if (key != name) continue;
    taken_.push_back(name);
    return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

void JsonFields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void JsonFields::fail(std::string_view name, std::string rest) {
  fail(api_error("invalid_value", "`" + path(name) + "` " + std::move(rest), path(name)));
}

std::optional<bool> JsonFields::boolean(std::string_view name) {
  const JsonValue* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->as_bool() != nullptr) return *value->as_bool();
  fail(name, std::string("must be true or false, got ") + value->kind());
  return std::nullopt;
}

std::optional<int64_t> JsonFields::integer(std::string_view name, int64_t min, int64_t max) {
  const JsonValue* value = take(name);
  if (value == nullptr) return std::nullopt;
  std::string rule = "must be an integer >= " + std::to_string(min) + " and <= " + std::to_string(max);
  std::optional<int64_t> v;
  std::string got = value->kind();
  if (const int64_t* i = value->as_integer()) {
    v = *i;
    got = std::to_string(*i);
  } else if (const double* d = value->as_double()) {
    got = number_text(*d);
    if (*d == std::floor(*d) && std::fabs(*d) < 9e15) v = static_cast<int64_t>(*d);
  }
  if (v && *v >= min && *v <= max) return v;
  fail(name, rule + ", got " + got);
  return std::nullopt;
}

std::optional<double> JsonFields::number(std::string_view name, NumberRange range) {
  const JsonValue* value = take(name);
  if (value == nullptr) return std::nullopt;
  std::string rule = std::string("must be ") + (range.min_excluded ? "> " : ">= ") + number_text(range.min) +
                     " and <= " + number_text(range.max);
  std::optional<double> v;
  if (const int64_t* i = value->as_integer()) v = static_cast<double>(*i);
  if (const double* d = value->as_double()) v = *d;
  if (!v) {
    fail(name, "must be a number" + rule.substr(7) + ", got " + value->kind());
    return std::nullopt;
  }
  if (*v <= range.max && (range.min_excluded ? *v > range.min : *v >= range.min)) return v;
  fail(name, rule + ", got " + number_text(*v));
  return std::nullopt;
}

std::optional<std::string> JsonFields::string(std::string_view name) {
  const JsonValue* value = take(name);
  if (value == nullptr) return std::nullopt;
  if (value->as_string() != nullptr) return *value->as_string();
  fail(name, std::string("must be a string, got ") + value->kind());
  return std::nullopt;
}

std::vector<std::string> JsonFields::not_taken() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_)
    if (std::find(taken_.begin(), taken_.end(), key) == taken_.end()) names.push_back(safe_word(key));
  return names;
}

}  // namespace tandem::api
