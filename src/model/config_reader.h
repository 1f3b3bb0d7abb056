// Metadata keys of one architecture ("llama." + suffix) as numbers in a stated range. A key that is
// missing, of another kind or out of range is an error that names file, key, found and allowed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_reader.h"

namespace tandem {

class ConfigReader {
 public:
  // context_limit: the operator's bound on the context, 0 for none.
  ConfigReader(const GgufModel& file, std::string architecture, int context_limit)
      : file_(file), prefix_(std::move(architecture) + "."), context_limit_(context_limit) {}

  const GgufModel& file() const { return file_; }
  int context_limit() const { return context_limit_; }
  std::string key(std::string_view suffix) const { return prefix_ + std::string(suffix); }
  bool has(std::string_view suffix) const { return file_.find(key(suffix)) != nullptr; }

  // With a fallback a missing key is not an error.
  Result<int> integer(std::string_view suffix, int min, int max,
                      std::optional<int> fallback = {}) const;
  Result<double> real(std::string_view suffix, double min, double max,
                      std::optional<double> fallback = {}) const;
  Result<std::string> text(std::string_view suffix, const std::string& fallback) const;
  // One number for all layers, or an array with one a layer. Size n_layers.
  Result<std::vector<int>> per_layer(std::string_view suffix, int n_layers, int min, int max,
                                     const std::vector<int>& fallback = {}) const;
  // "file: metadata key "llama.x" must be <allowed>, found <found>"
  Status bad(std::string_view suffix, const std::string& allowed, const std::string& found) const;

 private:
  const GgufModel& file_;
  std::string prefix_;
  int context_limit_;
};

}  // namespace tandem
