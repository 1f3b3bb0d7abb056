#include "ctl/json_read.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "ctl/terminal_text.h"

namespace tandem::ctl {
namespace {

using Json = nlohmann::json;

const Json* at(const void* node) { return static_cast<const Json*>(node); }

const Json* find_node(const void* root, std::string_view path) {
  const Json* node = at(root);
  while (node != nullptr && !path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    if (!node->is_object()) return nullptr;
    const auto it = node->find(path.substr(0, dot));
    node = it == node->end() ? nullptr : &*it;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return node;
}

}  // namespace

JsonDocument::JsonDocument(const std::string& bytes) : JsonPart(nullptr) {
  auto root = std::make_shared<const Json>(Json::parse(bytes, nullptr, false));
  node_ = root.get();
  root_ = std::move(root);
}

bool JsonPart::is_object() const { return node_ != nullptr && at(node_)->is_object(); }

JsonPart JsonPart::find(std::string_view path) const { return JsonPart(find_node(node_, path)); }

bool JsonPart::has_list(std::string_view path) const {
  const Json* node = find_node(node_, path);
  return node != nullptr && node->is_array();
}

std::vector<JsonPart> JsonPart::list(std::string_view path) const {
  std::vector<JsonPart> parts;
  if (!has_list(path)) return parts;
  for (const Json& item : *find_node(node_, path)) parts.push_back(JsonPart(&item));
  return parts;
}

std::optional<bool> JsonPart::flag(std::string_view path) const {
  const Json* node = find_node(node_, path);
  return node != nullptr && node->is_boolean() ? std::optional(node->get<bool>()) : std::nullopt;
}

std::optional<double> JsonPart::number(std::string_view path) const {
  const Json* node = find_node(node_, path);
  return node != nullptr && node->is_number() ? std::optional(node->get<double>()) : std::nullopt;
}

int64_t JsonPart::count(std::string_view path) const {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  const Json* node = find_node(node_, path);
  if (node == nullptr || !node->is_number()) return 0;
  if (node->is_number_unsigned()) return static_cast<int64_t>(std::min(node->get<uint64_t>(), static_cast<uint64_t>(kMost)));
  if (node->is_number_integer()) return node->get<int64_t>();
  const double value = node->get<double>();
  if (!(value > -9.2e18)) return kLeast;
  return value < 9.2e18 ? static_cast<int64_t>(value) : kMost;
}

std::optional<std::string> JsonPart::raw_text(std::string_view path) const {
  const Json* node = find_node(node_, path);
  return node != nullptr && node->is_string() ? std::optional(node->get<std::string>()) : std::nullopt;
}

std::optional<std::string> JsonPart::text(std::string_view path) const {
  const auto raw = raw_text(path);
  return raw ? std::optional(terminal_text(*raw)) : std::nullopt;
}

std::optional<std::string> JsonPart::error() const {
  if (!find("error").is_there()) return std::nullopt;
  const auto message = text("error.message");
  return message && !message->empty() ? *message : "an error without a reason";
}

}  // namespace tandem::ctl
