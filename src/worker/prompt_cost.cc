#include "worker/prompt_cost.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace tandem {
namespace {

constexpr int kShort = 16, kLong = 128;  // tokens; the long one is a chunk, or most of one
constexpr int kRounds = 3;               // of which the quickest counts: the others were disturbed

Result<int64_t> time_prompt(Engine* engine, const LoadedModel& model, int n_tokens, int round, const TakeEvents& take_events) {
  EngineRequest request = startup_request(startup_prompt(n_tokens, round * 7 + n_tokens, model.info.vocab_size), 1);
  const int64_t begin_us = monotonic_us();
  CHECK_OK(run_startup_text(engine, std::move(request), take_events,
                            "the model cannot compute a prompt of " + std::to_string(n_tokens) + " tokens"));
  return monotonic_us() - begin_us;
}

}  // namespace

Status measure_prompts(Engine* engine, LoadedModel* model, const TakeEvents& take_events) {
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
