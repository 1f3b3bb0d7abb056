// JSON of others: a server that may not be ours, a package index. A member that is missing or of another type is not there, and
// nothing throws. Paths are like "model.layers", "" is the part itself. Pure. Over nlohmann::json, which does not show.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::ctl {

// Something inside a document, which must outlive it.
class JsonPart {
 public:
  bool is_there() const { return node_ != nullptr; }
  bool is_object() const;
  JsonPart find(std::string_view path) const;
  bool has_list(std::string_view path) const;
  std::vector<JsonPart> list(std::string_view path) const;  // empty: no list there
  std::optional<bool> flag(std::string_view path) const;
  std::optional<double> number(std::string_view path) const;
  // The number without its fraction, the nearest int64 if it is beyond; 0: no number there.
  int64_t count(std::string_view path) const;
  std::optional<std::string> text(std::string_view path) const;  // as a terminal may get it (terminal_text.h)
  std::optional<std::string> raw_text(std::string_view path) const;
  // The reason in an answer shaped like OpenAI's errors; nothing: it is no error. One without words gets some of ours.
  std::optional<std::string> error() const;

 protected:
  explicit JsonPart(const void* node) : node_(node) {}
  const void* node_;
};

class JsonDocument : public JsonPart {
 public:
  // Any bytes: what is no JSON is there, but is nothing.
  explicit JsonDocument(const std::string& bytes);

 private:
  std::shared_ptr<const void> root_;
};

}  // namespace tandem::ctl
