#include "worker/weight_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace tandem {
namespace {

constexpr int kRounds = 4, kStepsOfRound = 4;  // with each set; the first of a round is not counted
constexpr int kPrompt = 17;
constexpr int64_t kLongEnoughUs = 2'000'000;  // a large model on a slow machine: two rounds will do
constexpr double kMargin = 1.05;  // by less, two measurements of the same thing differ

constexpr std::string_view kText =
    "The pump house stands at the end of the lane, where the river bends towards the mill. Two men look after it. Every "
    "morning one of them walks along the bank, reads the level from a painted board and writes it into a book that was begun "
    "before the war. If the water has risen by more than a hand since the evening, he opens the second gate, waits until the "
    "noise changes, and telephones the farms below. Most days there is nothing to do. He oils the bearings, sweeps the leaves "
    "from the grating and makes tea on a small stove. When it rains for a week, though, nobody sleeps, and the lamp over the "
    "door burns until the sky clears and the fields are dry enough to walk on again.";

// 0: the text is too long for this pool.
Result<double> perplexity_of(Engine* engine, const std::vector<int32_t>& ids, WeightSet set, const TakeEvents& take_events) {
  if (static_cast<int>(ids.size()) + 2 > engine->max_tokens_per_sequence()) return 0.0;
  EngineRequest request = startup_request(ids, 1);
  request.prompt_logprobs = true;
  request.n_top_logprobs = 0;
  double nll = 0;
  size_t n_scored = 0;
  CHECK_OK(engine->set_weights(set));
  CHECK_OK(run_startup_text(engine, std::move(request), take_events, "the text to compare the weight sets with failed",
                            [&](const EngineEvents& events) {
                              for (const EnginePrompt& prompt : events.prompts) {
                                for (const SampleResult& token : prompt.logprobs) nll -= static_cast<double>(token.chosen.logprob), ++n_scored;
                              }
                            }));
  return n_scored > 0 ? std::exp(nll / static_cast<double>(n_scored)) : 0.0;
}

}  // namespace

Result<SetFigures> measure_sets(Engine* engine, const LoadedModel& model, const SetFigures& known, const TakeEvents& take_events) {
  EngineRequest request = startup_request(startup_prompt(kPrompt, 3, model.info.vocab_size), 2 * kRounds * kStepsOfRound + 2);
  SetFigures figures;
  figures.n_threads = static_cast<uint32_t>(model.n_threads), figures.lean_file = known.lean_file;
  if (kPrompt + static_cast<int>(request.max_tokens) + 1 > engine->max_tokens_per_sequence()) return figures;
  CHECK_OK(engine->submit(std::move(request)));
  bool has_begun = false;
  for (int i = 0; i < 100 && !has_begun; ++i) {
    engine->turn();
    for (const EngineToken& token : take_events().tokens) has_begun = has_begun || token.token >= 0;
  }
  int64_t best_us[2] = {INT64_MAX, INT64_MAX};
  // A device does not run ahead over the border of two pages: the step before it ends early, and the one behind begins late.
  const int page_size = model.engine_options.page_size;
  const auto is_at_border = [&](int pos) { return pos % page_size == 0 || (pos + 1) % page_size == 0; };
  int pos = kPrompt;
  const int64_t begin_us = monotonic_us();
  for (int round = 0; round < kRounds && has_begun; ++round) {
    for (WeightSet set : {WeightSet::kFull, WeightSet::kLean}) {
      CHECK_OK(engine->set_weights(set));
      for (int i = 0; i < kStepsOfRound; ++i, ++pos) {
        const int64_t step_us = monotonic_us();
        engine->turn();
        int64_t& best = best_us[static_cast<size_t>(set)];
        if (i > 0 && !is_at_border(pos)) best = std::min(best, std::max<int64_t>(1, monotonic_us() - step_us));
      }
    }
    if (round > 0 && monotonic_us() - begin_us > kLongEnoughUs) break;
  }
  engine->cancel(kStartupId, -1, true, SequenceEnd::kNone);
  engine->turn();
  for (const EngineToken& token : take_events().tokens) {
    if (token.end == SequenceEnd::kFailed) return data_loss("the text to measure the weight sets with failed: " + token.error);
  }
  if (!has_begun) return internal_error("the text to measure the weight sets with did not begin");
  figures.full_ms = static_cast<double>(best_us[0]) / 1000, figures.lean_ms = static_cast<double>(best_us[1]) / 1000;
  figures.full_perplexity = known.full_perplexity, figures.lean_perplexity = known.lean_perplexity;
  if (figures.full_perplexity <= 0) {
    std::vector<int32_t> ids;
    CHECK_OK(model.tokenizer->encode(kText, {true, false}, &ids));
    CHECK_ASSIGN(figures.full_perplexity, perplexity_of(engine, ids, WeightSet::kFull, take_events));
    CHECK_ASSIGN(figures.lean_perplexity, perplexity_of(engine, ids, WeightSet::kLean, take_events));
  }
  CHECK_OK(engine->set_weights(WeightSet::kFull));
  return figures;
}

std::string no_lean_reason(const Config& settings, const LoadedModel& model, const SetFigures& figures) {
  if (settings.weights_lean == "off") return "there is no lean weight set: weights.lean is off";
  const bool has_lean_file = config_has_lean_file(settings);
  if (has_lean_file && model.info.device == "gpu") return "there is no lean weight set: the file of weights.lean serves on the processor only";
  if (has_lean_file && !model.no_lean_file.empty()) return "there is no lean weight set: " + model.no_lean_file;
  if (model.backend->weight_bytes().lean == 0)
    return "there is no lean weight set: only a model that is mostly Q8_0 has one (tandem quantize --to q8_0)";
  if (figures.full_ms > 0 && figures.lean_ms * kMargin > figures.full_ms)
    return fmt::format("the lean weight set is not faster here: {:.2f} ms a step, the full one {:.2f}", figures.lean_ms, figures.full_ms);
  return "";
}

}  // namespace tandem
