#include "worker/rehearsal.h"

#include <algorithm>

#include "base/clock.h"

namespace tandem {
namespace {

constexpr int kPrompt = 15;         // tokens: with the first steps' a page, no more
constexpr int kSteps = 3;           // of each number of sequences with each set
constexpr uint32_t kMostTokens = 200;
constexpr int kTurnsEach = 4;       // until a sequence has begun, where there is room: the least chunk is half of its prompt

class Rehearsal {
 public:
  Rehearsal(Engine* engine, const RehearsalPlan& plan, const TakeEvents& take_events)
      : engine_(engine), plan_(plan), take_events_(take_events) {}
  ~Rehearsal() {
    for (int i = 0; i < n_submitted_; ++i) engine_->cancel(kStartupId - static_cast<uint64_t>(i), -1, true, SequenceEnd::kNone);
    engine_->turn();
    take_events_();
    (void)engine_->set_weights(WeightSet::kFull);
  }

  // False: there is no room for so many.
  Result<bool> begin(int n_sequences) {
    const auto n_tokens = static_cast<uint32_t>(std::min<int>(kMostTokens, engine_->max_tokens_per_sequence() - kPrompt));
    for (; n_submitted_ < n_sequences; ++n_submitted_) {
      EngineRequest request = startup_request(startup_prompt(kPrompt, 1000 + n_submitted_, plan_.vocab_size), n_tokens);
      request.id = kStartupId - static_cast<uint64_t>(n_submitted_);
      CHECK_OK(engine_->submit(std::move(request)));
    }
    for (int i = 0; i < kTurnsEach * (n_sequences + 1) && n_begun_ < n_sequences; ++i) CHECK_OK(turn());
    return n_begun_ == n_sequences;
  }

  Status steps() {
    for (int set = 0; set < plan_.n_sets; ++set) {
      CHECK_OK(engine_->set_weights(set == 0 ? WeightSet::kFull : WeightSet::kLean));
      for (int i = 0; i < kSteps; ++i) CHECK_OK(turn());
    }
    return ok_status();
  }

 private:
  Status turn() {
    engine_->turn();
    for (const EngineToken& token : take_events_().tokens) {
      if (token.end == SequenceEnd::kFailed) return data_loss("the model cannot compute several sequences at once: " + token.error);
      n_begun_ += token.token >= 0 && token.index == 0;
    }
    return ok_status();
  }

  Engine* engine_;
  const RehearsalPlan& plan_;
  const TakeEvents& take_events_;
  int n_submitted_ = 0, n_begun_ = 0;
};

}  // namespace

Result<int> rehearse(Engine* engine, const RehearsalPlan& plan, const TakeEvents& take_events) {
  if (engine->max_tokens_per_sequence() <= kPrompt) return 0;
  Rehearsal rehearsal(engine, plan, take_events);
  int n_done = 0;
  int64_t begin_us = monotonic_us(), last_us = plan.canary_us / 2;
  for (int n = 1;; n = std::min(2 * n, plan.most_sequences)) {
    const int64_t now_us = monotonic_us();
    // Twice as many take at most twice as long.
    if (now_us - begin_us + 2 * last_us > plan.most_us) return n_done;
    CHECK_ASSIGN(const bool has_room, rehearsal.begin(n));
    if (!has_room) return n_done;
    CHECK_OK(rehearsal.steps());
    last_us = monotonic_us() - now_us;
    n_done = n;
    if (n >= plan.most_sequences) return n_done;
  }
}

}  // namespace tandem
