#include "worker/startup_text.h"

#include <utility>

namespace tandem {

std::vector<int32_t> startup_prompt(int n, int salt, int vocab_size) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back((i * 41 + salt) % vocab_size);
  return ids;
}

EngineRequest startup_request(std::vector<int32_t> prompt, uint32_t max_tokens) {
  EngineRequest request;
  request.id = kStartupId;
  request.prompt = std::move(prompt);
  request.choices.push_back({0, {}});
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.waits_for_company = false;
  request.max_tokens = max_tokens;
  return request;
}

Status run_startup_text(Engine* engine, EngineRequest request, const TakeEvents& take_events, const std::string& failure,
                        const std::function<void(const EngineEvents&)>& on_events) {
  const size_t most_turns = request.prompt.size() + request.max_tokens + 1000;  // each computes a token at least
  CHECK_OK(engine->submit(std::move(request)));
  for (size_t turn = 0; turn < most_turns; ++turn) {
    engine->turn();
    const EngineEvents events = take_events();
    if (on_events) on_events(events);
    for (const EngineToken& token : events.tokens) {
      if (token.end == SequenceEnd::kMaxTokens) return ok_status();
      if (token.end != SequenceEnd::kNone) return data_loss(failure + ": " + (token.error.empty() ? "it ended early" : token.error));
    }
  }
  return internal_error(failure + ": it did not end");
}

}  // namespace tandem
