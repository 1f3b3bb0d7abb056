// Which prompts the decode worker computes on its device instead of a prefill worker on the processor
// (prefill.placement = "auto"). DESIGN. Both workers measure once what a prompt takes them, a fixed part and a part a
// token; the device gets the lengths for which its line is the lower one. That is kept in a file of the cache folder and
// used by every later start with this model on these two places: the choice depends on a prompt's length, never on load
// or on how a measurement came out today. What the handoff takes is not in it. Confined to the supervisor's loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "supervisor/worker_link.h"

namespace tandem {

// Prompts of so many tokens, both included; from > to: none.
struct PromptRange {
  int64_t from = 1, to = 0;
  bool contains(int64_t n) const { return from <= n && n <= to; }
};
// fixed_us + n * token_ns / 1000 of each place; lengths from 1 to `context`.
struct PromptCost {
  int64_t fixed_us = 0, token_ns = 0;
};
PromptRange faster_on_device(const PromptCost& processor, const PromptCost& device, int64_t context);

class PromptPlacement {
 public:
  // `folder`: of the file; "": nothing is kept, and nobody asks for the device.
  explicit PromptPlacement(std::string folder) : path_(folder.empty() ? "" : folder + "/prompt_placement") {}

  bool is_on() const { return !path_.empty(); }
  // Nothing is kept for a model of this stamp (model_stamp()): workers that start are to measure.
  bool wants_measurement(const std::string& stamp) const;
  // Decides as soon as a prefill worker and a decode worker on a device are ready; only then asks for the model's stamp,
  // which looks at its files.
  void turn(std::span<WorkerLink* const> links, const std::function<std::string()>& stamp);
  const std::optional<PromptRange>& range() const { return range_; }  // none: not decided
  bool is_for_device(size_t n_tokens) const { return range_ && range_->contains(static_cast<int64_t>(n_tokens)); }

 private:
  const std::string path_;
  std::optional<PromptRange> range_;
};

}  // namespace tandem
