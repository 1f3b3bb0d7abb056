#include "worker/request_streams.h"

#include <algorithm>
#include <set>

#include "worker/prepare.h"

namespace tandem {
namespace {

using ipc::FinishReason;

FinishReason finish_reason(SequenceEnd end, FinishReason cancel_reason) {
  switch (end) {
    case SequenceEnd::kNone: return FinishReason::kNone;
    case SequenceEnd::kEndToken: return FinishReason::kStop;
    case SequenceEnd::kMaxTokens:
    case SequenceEnd::kContext:
    case SequenceEnd::kPool: return FinishReason::kLength;
    case SequenceEnd::kDeadline: return FinishReason::kDeadline;
    case SequenceEnd::kCancelled: return cancel_reason;
    case SequenceEnd::kFailed: return FinishReason::kFailed;
  }
  return FinishReason::kFailed;
}

SamplingParams sampling_params(const ipc::Sampling& in) {
  SamplingParams p;
  p.temperature = in.temperature;
  p.top_p = in.top_p;
  p.min_p = in.min_p;
  p.top_k = in.top_k;
  p.repetition_penalty = in.repetition_penalty;
  p.presence_penalty = in.presence_penalty;
  p.frequency_penalty = in.frequency_penalty;
  p.seed = in.seed;
  p.logit_bias = in.logit_bias;
  p.ignore_eos = in.ignore_eos;
  return p;
}

ipc::Loan ipc_loan(EngineLoan in, uint64_t generation) {
  ipc::Loan out;
  out.generation = generation;
  out.first_block = in.first_block, out.n_tokens = in.n_tokens, out.is_whole = in.is_whole;
  out.weight_borders = std::move(in.weight_borders);
  for (const auto& pages : in.groups) {
    auto& lent = out.groups.emplace_back();
    for (const RemotePage& p : pages) lent.push_back({p.page, p.serial});
  }
  return out;
}

EngineRequest engine_request(ipc::Submit submit, const std::vector<int32_t>& end_tokens) {
  EngineRequest r;
  r.id = submit.id;
  r.prompt = std::move(submit.prompt);
  r.sampling = sampling_params(submit.sampling);
  r.n_top_logprobs = submit.sampling.n_top_logprobs;
  r.prompt_logprobs = submit.prompt_logprobs;
  if (r.prompt_logprobs && r.n_top_logprobs < 0) r.n_top_logprobs = 0;
  // Entry 0 has no value and is not the engine's business.
  r.n_prompt_logprobs_known = submit.n_prompt_logprobs_known > 0 ? submit.n_prompt_logprobs_known - 1 : 0;
  r.max_tokens = submit.max_tokens;
  r.priority = static_cast<int>(submit.priority);
  r.waited_us = submit.waited_us;
  r.deadline_us = submit.deadline_us;
  r.end_tokens = end_tokens;
  if (submit.loan) r.loan = engine_loan(submit.id, *submit.loan);
  return r;
}

ipc::TokenEvent failure(uint64_t id, uint32_t choice, const std::string& error) {
  ipc::TokenEvent event;
  event.id = id;
  event.choice = choice;
  event.finish = FinishReason::kFailed;
  event.error = error;
  return event;
}

}  // namespace

EngineLoan engine_loan(uint64_t id, const ipc::Loan& in) {
  EngineLoan out;
  out.id = id, out.source = in.source, out.generation = in.generation;
  out.first_block = in.first_block, out.n_tokens = in.n_tokens, out.is_whole = in.is_whole;
  out.weight_borders = in.weight_borders;
  for (const auto& lent : in.groups) {
    auto& pages = out.groups.emplace_back();
    for (const ipc::LentPage& p : lent) pages.push_back({p.page, p.serial});
  }
  return out;
}

std::string RequestStreams::check(const ipc::Submit& submit) const {
  if (role_ != ipc::Role::kDecode && submit.loan) return "lent pages for a worker that computes prompts itself";
  if (requests_.contains(submit.id)) return "the request's id is in use";
  if (submit.prompt.empty()) return "the prompt is empty";
  if (std::string error = check_ids(submit.prompt, tokenizer_->n_tokens()); !error.empty())
    return "prompt: " + error;
  std::set<uint32_t> seen;
  for (const ipc::ChoiceState& c : submit.choices) {
    if (!seen.insert(c.choice).second) return "choice " + std::to_string(c.choice) + " is named twice";
    if (std::string error = check_ids(c.generated, tokenizer_->n_tokens()); !error.empty())
      return "generated tokens: " + error;
    if (!ipc::ascends(c.weight_borders)) return "the borders of weight sets must ascend";
  }
  return "";
}

std::optional<EngineRequest> RequestStreams::begin(ipc::Submit submit, Output* output) {
  ipc::TokenEvents events;
  uint64_t id = submit.id;
  if (std::string error = check(submit); !error.empty()) {
    for (const ipc::ChoiceState& c : submit.choices) events.events.push_back(failure(id, c.choice, error));
    if (!events.events.empty()) output->messages.emplace_back(std::move(events));
    return std::nullopt;
  }
  if (submit.prompt_logprobs && submit.n_prompt_logprobs_known == 0) {
    ipc::LogprobEntry first = entry({submit.prompt[0], 0.0f}, {});
    output->messages.emplace_back(ipc::PromptLogprobs{id, 0, {std::move(first)}});
  }
  Request request;
  std::vector<EngineRequest::Choice> rest;
  for (ipc::ChoiceState& c : submit.choices) {
    TextStream stream(tokenizer_, submit.stop, c.bytes_released);
    bool is_stopped = false;
    for (int32_t token : c.generated) is_stopped = is_stopped || stream.push(token);
    if (is_stopped) {  // the worker died between the last token and its end
      ipc::TokenEvent event;
      event.id = id;
      event.choice = c.choice;
      event.index = static_cast<uint32_t>(c.generated.size());
      event.text = stream.take_text();
      event.n_released = stream.n_released_tokens();
      event.finish = FinishReason::kStop;
      events.events.push_back(std::move(event));
      continue;
    }
    request.choices.emplace(c.choice, std::move(stream));
    rest.push_back({c.choice, std::move(c.generated), std::move(c.weight_borders)});
  }
  if (!events.events.empty()) output->messages.emplace_back(std::move(events));
  if (rest.empty()) return std::nullopt;
  requests_.emplace(id, std::move(request));
  EngineRequest out = engine_request(std::move(submit), tokenizer_->end_tokens());
  out.choices = std::move(rest);
  out.place = role_ == ipc::Role::kDecode && !out.loan ? 1 : 0;  // lent pages are a prefill worker's
  out.hands_off = role_ == ipc::Role::kPrefill && out.max_tokens > 0;
  return out;
}

void RequestStreams::translate(EngineEvents events, Output* output) {
  for (EnginePrompt& p : events.prompts) {
    if (!requests_.contains(p.id)) continue;
    if (!p.logprobs.empty()) {
      ipc::PromptLogprobs message{p.id, p.first_logprob, {}};
      for (const SampleResult& r : p.logprobs) message.entries.push_back(entry(r.chosen, r.top));
      output->messages.emplace_back(std::move(message));
    }
    output->messages.emplace_back(ipc::PromptProgress{p.id, p.n_done, p.n_total, p.n_cached, std::move(p.weight_borders)});
  }
  ipc::TokenEvents out;
  for (const EngineToken& token : events.tokens) add_token(token, &out, &output->ended);
  if (!out.events.empty()) output->messages.emplace_back(std::move(out));
  for (EngineLoan& loan : events.loans) {
    uint64_t id = loan.id;
    if (loan.is_whole) requests_.erase(id);  // its text goes on elsewhere
    output->messages.emplace_back(ipc::Lent{id, ipc_loan(std::move(loan), generation_)});
  }
  for (uint64_t id : events.imported) output->messages.emplace_back(ipc::ImportDone{id});
  for (EngineReturn& r : events.returns) {
    if (requests_.erase(r.id) > 0) output->messages.emplace_back(ipc::Returned{r.id, r.is_preempted, std::move(r.reason)});
  }
}

void RequestStreams::add_token(const EngineToken& token, ipc::TokenEvents* out, std::vector<Ended>* ended) {
  auto it = requests_.find(token.id);
  if (it == requests_.end()) return;
  auto choice = it->second.choices.find(token.choice);
  if (choice == it->second.choices.end()) return;  // ended by its text; this step was already under way
  TextStream& stream = choice->second;
  ipc::TokenEvent event;
  event.id = token.id;
  event.choice = token.choice;
  event.index = token.index;
  event.token = token.token;
  event.finish = finish_reason(token.end, it->second.cancel_reason);
  event.error = token.error;
  event.is_lean = token.weights == WeightSet::kLean;
  bool is_stopped = token.token >= 0 && stream.push(token.token);
  bool shows_rest = event.finish == FinishReason::kStop || event.finish == FinishReason::kLength ||
                    event.finish == FinishReason::kDeadline;
  if (!is_stopped && shows_rest) is_stopped = stream.finish();
  if (is_stopped) {
    if (token.end == SequenceEnd::kNone) ended->push_back({token.id, token.choice});
    event.finish = FinishReason::kStop;
  }
  event.text = stream.take_text();
  event.n_released = stream.n_released_tokens();
  if (token.has_logprob) event.logprob = entry(token.chosen, token.top);
  bool is_end = event.finish != FinishReason::kNone;
  out->events.push_back(std::move(event));
  if (!is_end) return;
  it->second.choices.erase(choice);
  if (it->second.choices.empty()) requests_.erase(it);
}

// The chosen token's bytes are its part of the text; the others are names, so control tokens show theirs.
ipc::LogprobEntry RequestStreams::entry(const TokenLogprob& chosen, const std::vector<TokenLogprob>& top) const {
  ipc::LogprobEntry e;
  e.chosen = {chosen.token, chosen.logprob, tokenizer_->token_bytes(chosen.token, false)};
  for (const TokenLogprob& t : top) e.top.push_back({t.token, t.logprob, tokenizer_->token_bytes(t.token, true)});
  return e;
}

bool RequestStreams::cancel(uint64_t id, ipc::FinishReason reason) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return false;
  it->second.cancel_reason = reason;
  return true;
}

std::vector<uint32_t> RequestStreams::unfinished_choices(uint64_t id) const {
  std::vector<uint32_t> out;
  auto it = requests_.find(id);
  if (it == requests_.end()) return out;
  for (const auto& [choice, stream] : it->second.choices) out.push_back(choice);
  return out;
}

}  // namespace tandem
