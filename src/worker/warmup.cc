#include "worker/warmup.h"

#include <algorithm>
#include <sstream>

#include "base/log.h"

namespace tandem {

namespace {

Result<std::vector<int32_t>> conversation(const std::string& system, const std::string& user, const TextModel& model) {
  ipc::Prepare question;
  question.kind = ipc::Prepare::Kind::kChat;
  question.messages = {{"system", system, ""}, {"user", user, ""}};
  question.add_generation_prompt = true;
  ipc::PrepareReply reply = prepare(question, model);
  if (!reply.ok) return invalid_argument("warmup.prompts: " + reply.error);
  return std::move(reply.ids);
}

// Until the prompt is computed; its pages are pinned before the sequence lets go of them.
Status prefill(Engine* engine, const std::vector<int32_t>& ids, const TakeEvents& take_events,
               const std::function<void(float)>& progress, int* n_pinned) {
  return run_startup_text(engine, startup_request(ids, 2), take_events, "warmup.prompts cannot be computed", [&](const EngineEvents& events) {
    for (const EnginePrompt& p : events.prompts) progress(static_cast<float>(p.n_done) / static_cast<float>(p.n_total));
    for (const EngineToken& token : events.tokens) {
      if (token.index == 0 && token.token >= 0) *n_pinned = engine->pin(ids);
    }
  });
}

}  // namespace

std::vector<std::string> split_warmup_prompts(const std::string& text) {
  std::vector<std::string> prompts;
  std::string prompt, line;
  const auto end_prompt = [&] {
    while (!prompt.empty() && prompt.back() == '\n') prompt.pop_back();  // the line that ends it is not part of it
    if (prompt.find_first_not_of(" \t\r\n") != std::string::npos) prompts.push_back(prompt);
    prompt.clear();
  };
  for (std::istringstream lines(text); std::getline(lines, line);) {
    if (line == "---") end_prompt();
    else prompt += line + "\n";
  }
  end_prompt();
  return prompts;
}

Result<std::vector<int32_t>> warmup_prefix(const std::string& prompt, const TextModel& model, int context_tokens) {
  std::vector<int32_t> ids;
  if (model.chat_template == nullptr) {
    CHECK_OK(model.tokenizer->encode(prompt, {true, false}, &ids));
  } else {
    // Two users who have nothing in common: what is the same in both comes before the user's first word.
    CHECK_ASSIGN(ids, conversation(prompt, "A", model));
    CHECK_ASSIGN(const std::vector<int32_t> other, conversation(prompt, "7", model));
    const auto parting = std::mismatch(ids.begin(), ids.end(), other.begin(), other.end());
    ids.erase(parting.first, ids.end());
  }
  if (ids.empty()) return invalid_argument("warmup.prompts: the model's template shows nothing of a system prompt before the user's words");
  if (static_cast<int64_t>(ids.size()) + 2 > context_tokens) {
    return invalid_argument("warmup.prompts: a prompt has " + std::to_string(ids.size()) + " tokens; allowed: at most the context less two, " +
                            std::to_string(context_tokens - 2));
  }
  return ids;
}

Result<WarmupResult> warm_up(Engine* engine, const std::vector<std::string>& prompts, const TextModel& model, int context_tokens,
                             const TakeEvents& take_events,
                             const std::function<void(const std::string& phase, float fraction)>& progress) {
  WarmupResult result;
  const int whole_pool = engine->max_tokens_per_sequence();
  int64_t n_tokens = 0;
  for (const std::string& prompt : prompts) {
    CHECK_ASSIGN(const std::vector<int32_t> ids, warmup_prefix(prompt, model, context_tokens));
    n_tokens += static_cast<int64_t>(ids.size());
    if (n_tokens > whole_pool / 2) {
      return invalid_argument("warmup.prompts: the first " + std::to_string(result.n_prompts + 1) + " have " + std::to_string(n_tokens) +
                              " tokens; allowed: half of the KV pool, " + std::to_string(whole_pool / 2) +
                              ". Shorten them or raise cache.kv_pool_bytes");
    }
    const std::string phase = "prefilling system prompt " + std::to_string(result.n_prompts + 1) + " of " + std::to_string(prompts.size());
    progress(phase, 0);
    int n_pinned = 0;
    CHECK_OK(prefill(engine, ids, take_events, [&](float fraction) { progress(phase, fraction); }, &n_pinned));
    if (n_pinned == 0)
      log_warn("nothing of a system prompt is kept", {{"prompt", result.n_prompts + 1}, {"reason", "it is shorter than a page, or the template does not show it"}});
    result.n_pinned_tokens += n_pinned;
    ++result.n_prompts;
  }
  return result;
}

}  // namespace tandem
