#include "worker/weight_speed.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"

namespace tandem {
namespace {

constexpr int kRounds = 4, kStepsOfRound = 4;  // with each set; the first of a round is not counted
constexpr int kPrompt = 17;
constexpr int64_t kLongEnoughUs = 2'000'000;  // a large model on a slow machine: two rounds will do
constexpr double kMargin = 1.05;  // by less, two measurements of the same thing differ

}  // namespace

Result<SetSpeeds> measure_sets(Engine* engine, const LoadedModel& model, const TakeEvents& take_events) {
  EngineRequest request = startup_request(startup_prompt(kPrompt, 3, model.info.vocab_size), 2 * kRounds * kStepsOfRound + 2);
  SetSpeeds speeds;
  speeds.n_threads = static_cast<uint32_t>(model.n_threads);
  if (kPrompt + static_cast<int>(request.max_tokens) + 1 > engine->max_tokens_per_sequence()) return speeds;
  CHECK_OK(engine->submit(std::move(request)));
  bool has_begun = false;
  for (int i = 0; i < 100 && !has_begun; ++i) {
    engine->turn();
    for (const EngineToken& token : take_events().tokens) has_begun = has_begun || token.token >= 0;
  }
  int64_t best_us[2] = {INT64_MAX, INT64_MAX};
  const int64_t begin_us = monotonic_us();
  for (int round = 0; round < kRounds && has_begun; ++round) {
    for (WeightSet set : {WeightSet::kFull, WeightSet::kLean}) {
      CHECK_OK(engine->set_weights(set));
      for (int i = 0; i < kStepsOfRound; ++i) {
        const int64_t step_us = monotonic_us();
        engine->turn();
        int64_t& best = best_us[static_cast<size_t>(set)];
        if (i > 0) best = std::min(best, std::max<int64_t>(1, monotonic_us() - step_us));
      }
    }
    if (round > 0 && monotonic_us() - begin_us > kLongEnoughUs) break;
  }
  CHECK_OK(engine->set_weights(WeightSet::kFull));
  engine->cancel(kStartupId, -1, true, SequenceEnd::kNone);
  engine->turn();
  (void)take_events();
  if (!has_begun) return internal_error("the text to measure the weight sets with did not begin");
  speeds.full_ms = static_cast<double>(best_us[0]) / 1000, speeds.lean_ms = static_cast<double>(best_us[1]) / 1000;
  return speeds;
}

std::string no_lean_reason(const Config& settings, const LoadedModel& model, const SetSpeeds& speeds) {
  if (settings.weights_lean == "off") return "there is no lean weight set: weights.lean is off";
  if (model.backend->weight_bytes().lean == 0)
    return model.info.device == "gpu" ? "there is no lean weight set on a device"
                                      : "there is no lean weight set: only a model that is mostly Q8_0 has one (tandem quantize --to q8_0)";
  if (speeds.full_ms > 0 && speeds.lean_ms * kMargin > speeds.full_ms)
    return fmt::format("the lean weight set is not faster here: {:.2f} ms a step, the full one {:.2f}", speeds.lean_ms, speeds.full_ms);
  return "";
}

}  // namespace tandem
