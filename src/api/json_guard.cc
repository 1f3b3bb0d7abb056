// The only file that knows the JSON library: its event parser feeds our own small document type.
#include <nlohmann/json.hpp>

#include "api/json_value.h"

namespace tandem::api {
namespace {

class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(JsonValue()); }
  bool boolean(bool v) override { return add(JsonValue(v)); }
  bool number_integer(number_integer_t v) override { return add(JsonValue(static_cast<int64_t>(v))); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<uint64_t>(INT64_MAX)) return add(JsonValue(static_cast<double>(v)));
    return add(JsonValue(static_cast<int64_t>(v)));
  }
  bool number_float(number_float_t v, const string_t&) override { return add(JsonValue(static_cast<double>(v))); }
  bool string(string_t& v) override { return check_text(v) && add(JsonValue(std::move(v))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(size_t) override { return enter(JsonValue(JsonObject())); }
  bool end_object() override { return leave_object(); }
  bool start_array(size_t) override { return enter(JsonValue(JsonArray())); }
  bool end_array() override {
    stack_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (!check_text(name)) return false;
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    // The library's text quotes the bytes; ours only says where.
    constexpr int kNumberOverflow = 406;
    fail(e.id == kNumberOverflow ? "a number is out of range"
                                 : "not valid JSON in UTF-8 (near byte " + std::to_string(position) + ")");
    return false;
  }

  JsonValue take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  bool check_text(const std::string& text) {
    return text.find('\0') == std::string::npos || fail("a string holds the NUL character");
  }
  JsonValue* place(JsonValue value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (JsonArray* array = stack_.back()->as_array()) return &array->emplace_back(std::move(value));
    return &stack_.back()->as_object()->emplace_back(std::move(key_), std::move(value)).second;
  }
  bool add(JsonValue value) {
    if (++n_values_ > kMaxJsonValues)
      return fail("more than " + std::to_string(kMaxJsonValues) + " values");
    place(std::move(value));
    return true;
  }
  bool enter(JsonValue value) {
    if (static_cast<int>(stack_.size()) >= kMaxJsonDepth)
      return fail("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    if (++n_values_ > kMaxJsonValues)
      return fail("more than " + std::to_string(kMaxJsonValues) + " values");
    // Children are only added to the innermost container, so pointers to the outer ones stay valid.
    stack_.push_back(place(std::move(value)));
    return true;
  }
  bool leave_object() {
    const JsonObject& object = *stack_.back()->as_object();
    std::vector<std::string_view> names;
    names.reserve(object.size());
    for (const auto& member : object) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    if (std::adjacent_find(names.begin(), names.end()) != names.end())
      return fail("an object gives the same key twice");
    stack_.pop_back();
    return true;
  }

  JsonValue root_;
  std::vector<JsonValue*> stack_;
  std::string key_, problem_;
  size_t n_values_ = 0;
};

ApiError bad_json(const std::string& what) {
  return api_error("invalid_json", "the request body must be one JSON object: " + what);
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  if (const JsonObject* object = as_object())
    for (const auto& [name, value] : *object)
      if (name == key) return &value;
  return nullptr;
}

const char* JsonValue::kind() const {
  constexpr const char* kKinds[] = {"null",     "a boolean", "an integer", "a number",
                                    "a string", "an array",  "an object"};
  return kKinds[content_.index()];
}

ApiResult<JsonValue> parse_json(std::string_view bytes) {
  if (bytes.empty()) return bad_json("it is empty");
  if (bytes.substr(0, 3) == "\xEF\xBB\xBF") return bad_json("it begins with a byte order mark");
  if (bytes.find('\0') != std::string_view::npos) return bad_json("it holds a NUL byte");
  Builder builder;
  if (!nlohmann::json::sax_parse(bytes.begin(), bytes.end(), &builder))
    return bad_json(builder.problem().empty() ? "not valid JSON" : builder.problem());
  return builder.take();
}

}  // namespace tandem::api
