#include "model/config_reader.h"

#include <fmt/format.h>

namespace tandem {
namespace {

bool is_missing(const Status& s) { return s.code() == StatusCode::kNotFound; }

Status add_hint(const Status& missing) {
  return invalid_argument(missing.message() +
                          "; the architecture needs it: convert the model again");
}

}  // namespace

Status ConfigReader::bad(std::string_view suffix, const std::string& allowed,
                         const std::string& found) const {
  return invalid_argument(fmt::format("{}: metadata key \"{}\" must be {}, found {}", file_.name(),
                                      key(suffix), allowed, found));
}

Result<int> ConfigReader::integer(std::string_view suffix, int min, int max,
                                  std::optional<int> fallback) const {
  auto value = file_.get_int(key(suffix));
  if (!value.ok()) {
    if (!is_missing(value.status())) return value.status();
    if (fallback) return *fallback;
    return add_hint(value.status());
  }
  if (*value < min || *value > max)
    return bad(suffix, fmt::format("from {} to {}", min, max), std::to_string(*value));
  return static_cast<int>(*value);
}

Result<double> ConfigReader::real(std::string_view suffix, double min, double max,
                                  std::optional<double> fallback) const {
  auto value = file_.get_float(key(suffix));
  if (!value.ok()) {
    if (!is_missing(value.status())) return value.status();
    if (fallback) return *fallback;
    return add_hint(value.status());
  }
  if (!(*value >= min && *value <= max))  // refuses NaN too
    return bad(suffix, fmt::format("from {} to {}", min, max), fmt::format("{}", *value));
  return *value;
}

Result<std::string> ConfigReader::text(std::string_view suffix, const std::string& fallback) const {
  auto value = file_.get_string(key(suffix));
  if (!value.ok() && is_missing(value.status())) return fallback;
  return value;
}

Result<std::vector<int>> ConfigReader::per_layer(std::string_view suffix, int n_layers, int min,
                                                 int max, const std::vector<int>& fallback) const {
  auto array = file_.get_array(key(suffix));
  if (!array.ok()) {
    if (is_missing(array.status()) && !fallback.empty()) return fallback;
    CHECK_ASSIGN(int same, integer(suffix, min, max));
    return std::vector<int>(static_cast<size_t>(n_layers), same);
  }
  const GgufArray& a = **array;
  if (a.element_type == GgufValueType::kString || a.element_type == GgufValueType::kF32 ||
      a.element_type == GgufValueType::kF64)
    return bad(suffix, "an integer or an array of integers", "an array of another kind");
  if (a.count != static_cast<uint64_t>(n_layers))
    return bad(suffix, fmt::format("one number, or {} (one a layer)", n_layers),
               fmt::format("{} numbers", a.count));
  std::vector<int> values;
  for (uint64_t i = 0; i < a.count; ++i) {
    int64_t v = a.integer(i);
    if (v < min || v > max)
      return bad(suffix, fmt::format("from {} to {}", min, max),
                 fmt::format("{} for layer {}", v, i));
    values.push_back(static_cast<int>(v));
  }
  return values;
}

}  // namespace tandem
