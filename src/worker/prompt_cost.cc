#include "worker/prompt_cost.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace tandem {
namespace {

constexpr uint64_t kId = ~uint64_t{0} - 1;
constexpr int kShort = 16, kLong = 128;  // tokens; the long one is a chunk, or most of one
constexpr int kRounds = 3;               // of which the quickest counts: the others were disturbed
constexpr int kMostTurns = 10000;

// A prompt that none before begins like: the prefix cache has nothing of it.
Result<int64_t> time_prompt(Engine* engine, const LoadedModel& model, int n_tokens, int round, const std::function<EngineEvents()>& take_events) {
  EngineRequest request;
  request.id = kId;
  for (int i = 0; i < n_tokens; ++i) request.prompt.push_back((i * 41 + round * 7 + n_tokens) % model.info.vocab_size);
  request.choices.push_back({0, {}});
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.max_tokens = 1;
  const int64_t begin_us = monotonic_us();
  CHECK_OK(engine->submit(std::move(request)));
  for (int turn = 0; turn < kMostTurns; ++turn) {
    engine->turn();
    for (const EngineToken& token : take_events().tokens) {
      if (token.end == SequenceEnd::kMaxTokens) return monotonic_us() - begin_us;
      if (token.end != SequenceEnd::kNone) return data_loss("the model cannot compute a prompt of " + std::to_string(n_tokens) + " tokens: " + token.error);
    }
  }
  return internal_error("a prompt of " + std::to_string(n_tokens) + " tokens did not end");
}

}  // namespace

Status measure_prompts(Engine* engine, LoadedModel* model, const std::function<EngineEvents()>& take_events) {
  const int n_long = std::min({kLong, model->info.context_tokens - 2, static_cast<int>(model->info.pool_tokens) - 1});
  if (n_long <= kShort) return ok_status();
  int64_t shortest_us = INT64_MAX, longest_us = INT64_MAX;
  for (int round = 0; round < kRounds; ++round) {
    CHECK_ASSIGN(const int64_t few, time_prompt(engine, *model, kShort, round, take_events));
    CHECK_ASSIGN(const int64_t many, time_prompt(engine, *model, n_long, round, take_events));
    shortest_us = std::min(shortest_us, few), longest_us = std::min(longest_us, many);
  }
  ipc::ModelInfo& info = model->info;
  info.prompt_token_ns = std::max<int64_t>(1, (longest_us - shortest_us) * 1000 / (n_long - kShort));
  info.prompt_fixed_us = std::max<int64_t>(0, shortest_us - kShort * info.prompt_token_ns / 1000);
  log_info("prompts measured", {{"fixed_us", info.prompt_fixed_us}, {"token_us", static_cast<double>(info.prompt_token_ns) / 1000}});
  return ok_status();
}

}  // namespace tandem
