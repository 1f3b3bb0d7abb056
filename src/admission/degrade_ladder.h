// The ladder of degradation as data: what each rung does, which causes of load it helps, when it is entered and left.
// Read from firmware_config/degrade_ladder.toml and checked as a whole. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "admission/load.h"
#include "base/status.h"

namespace tandem {

// In the order of severity; a rung's name in the file, in marks and in metrics is its kind's.
enum class RungKind { kLogprobs, kWeights4bit, kBatch, kTokens, kShed };
constexpr int kNumRungs = 5;
const char* rung_name(RungKind kind);  // "logprobs", "weights-4bit", "batch", "tokens", "shed"
std::optional<RungKind> parse_rung(const std::string& name);

struct Rung {
  RungKind kind = RungKind::kLogprobs;
  std::vector<LoadCause> causes;
  double enter = 1, leave = 0;      // load of one of the causes; leave < enter
  int64_t hold_us = 0;              // the load must stay above `enter` for so long
  int64_t leave_hold_us = 0;        // … and below `leave` for so long
  int64_t dwell_us = 10'000'000;    // at most one change per this time
  int64_t max_tokens = 0;           // kTokens: the cap of low-priority requests
  int64_t then_normal_us = 0;       // kShed: normal priority is shed too after so long above `enter`
};

struct Ladder {
  LoadScales scales;
  std::vector<Rung> rungs;  // in the order of the file
};

// Errors name file, line, key, value and range: unknown names, a rung given twice, thresholds that cross, a scale
// without length, memory as a cause for a second weight set.
Result<Ladder> parse_ladder(const std::string& text, const std::string& file);

}  // namespace tandem
