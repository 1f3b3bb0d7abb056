#include "supervisor/request.h"

#include <algorithm>
#include <utility>

#include "admission/degrade_ladder.h"
#include "base/clock.h"

namespace tandem {

using api::StreamEvent;
using ipc::FinishReason;

namespace {

double ms_between(int64_t from_us, int64_t to_us) {
  return from_us == 0 || to_us <= from_us ? 0 : static_cast<double>(to_us - from_us) / 1000;
}

// Log-probabilities of tokens of which a byte is out by now.
std::vector<ipc::LogprobEntry> release_logprobs(Choice* choice, uint32_t n_released) {
  std::vector<ipc::LogprobEntry> released;
  while (choice->n_shown < n_released && !choice->held_logprobs.empty()) {
    released.push_back(std::move(choice->held_logprobs.front()));
    choice->held_logprobs.pop_front();
    ++choice->n_shown;
  }
  return released;
}

// For the log: the set that computed the request's positions; "" where none did.
std::string weights_of(const Request& r) {
  if (r.n_prompt_done == 0 && r.completion_tokens() == 0) return "";
  bool is_mixed = r.prompt_borders.size() > 1 || (r.prompt_borders.size() == 1 && r.prompt_borders[0] > 0);
  bool is_lean = ipc::is_lean_at_end(r.prompt_borders);
  for (const Choice& choice : r.choices) {
    if (!choice.generated.empty() || !choice.weight_borders.empty()) is_mixed = is_mixed || choice.weight_borders != r.prompt_borders;
  }
  return is_mixed ? "full,4-bit" : is_lean ? "4-bit" : "full";
}

// Why a choice stopped early, for `tandem.reason`: "" for max_tokens itself.
std::string length_reason(const Request& request, const Choice& choice) {
  if (choice.finish == FinishReason::kDeadline) return "deadline";
  if (choice.finish != FinishReason::kLength || choice.generated.size() >= request.max_tokens) {
    bool is_full = choice.finish == FinishReason::kLength;
    if (is_full && request.is_capped && choice.generated.size() >= request.max_tokens) return "degraded";
    bool is_context = !request.in.max_tokens && is_full;
    return is_context ? "context" : "";
  }
  size_t used = request.in.prompt.size() + choice.generated.size();
  return used >= static_cast<size_t>(request.context_tokens) ? "context" : "kv_pool";
}

Status check_event(const Request& request, const ipc::TokenEvent& event) {
  if (event.choice >= request.choices.size())
    return invalid_argument("choice " + std::to_string(event.choice) + " of a request with " +
                            std::to_string(request.choices.size()));
  const Choice& choice = request.choices[event.choice];
  if (choice.finish != FinishReason::kNone) return invalid_argument("event of a finished choice");
  if (event.token >= 0 && event.index != choice.generated.size())
    return invalid_argument("token with index " + std::to_string(event.index) + " where " +
                            std::to_string(choice.generated.size()) + " comes next");
  return ok_status();
}

// Token i of a choice (or the end token that takes its place) is drawn from the position before its own; that of the
// first is the prompt's last.
void note_set(const Request& request, Choice* choice, const ipc::TokenEvent& event) {
  if (choice->generated.empty()) {
    choice->weight_borders = request.prompt_borders;
  } else if (event.is_lean != ipc::is_lean_at_end(choice->weight_borders)) {
    choice->weight_borders.push_back(static_cast<uint32_t>(request.in.prompt.size() + choice->generated.size()) - 1);
  }
}

void take_token(Request* request, Choice* choice, ipc::TokenEvent* event, int64_t now_us,
                TokenEffect* effect) {
  choice->generated.push_back(event->token);
  if (request->in.sampling.n_top_logprobs >= 0)
    choice->held_logprobs.push_back(event->logprob ? std::move(*event->logprob)
                                                   : ipc::LogprobEntry{});
  effect->is_new_token = true;
  if (choice->last_token_us != 0)
    effect->gap_s = static_cast<double>(now_us - choice->last_token_us) / 1e6;
  choice->last_token_us = now_us;
  if (request->first_token_us == 0) request->first_token_us = now_us;
}

}  // namespace

size_t Request::n_unfinished() const {
  return static_cast<size_t>(std::count_if(choices.begin(), choices.end(), [](const Choice& c) {
    return c.finish == FinishReason::kNone;
  }));
}

int64_t Request::completion_tokens() const {
  size_t n = 0;
  for (const Choice& choice : choices) n += choice.generated.size();
  return static_cast<int64_t>(n);
}

Result<TokenEffect> apply_token_event(Request* request, ipc::TokenEvent event, int64_t now_us) {
  CHECK_OK(check_event(*request, event));
  Choice& choice = request->choices[event.choice];
  TokenEffect effect;
  request->last_event_us = now_us;
  if (event.is_lean) mark_degraded(request, rung_name(RungKind::kWeights4bit));
  if (event.is_lean || event.token >= 0) note_set(*request, &choice, event);
  if (event.token >= 0) take_token(request, &choice, &event, now_us, &effect);
  bool is_normal = event.finish == FinishReason::kNone || event.finish == FinishReason::kStop ||
                   event.finish == FinishReason::kLength || event.finish == FinishReason::kDeadline;
  if (!is_normal) {
    effect.abnormal = event.finish;
    return effect;
  }
  if (event.finish == FinishReason::kDeadline && request->first_token_us == 0) {
    effect.is_late_deadline = true;
    return effect;
  }
  choice.bytes_released += event.text.size();
  choice.finish = event.finish;
  StreamEvent out;
  out.choice = event.choice;
  out.text = std::move(event.text);
  out.logprobs = release_logprobs(&choice, event.n_released);
  if (event.finish != FinishReason::kNone) {
    out.kind = StreamEvent::Kind::kChoiceEnd;
    out.finish = event.finish;
    out.reason = length_reason(*request, choice);
    out.timing = timing_of(*request, now_us);
    effect.events.push_back(std::move(out));
  } else if (!out.text.empty() || !out.logprobs.empty()) {
    out.kind = StreamEvent::Kind::kText;
    effect.events.push_back(std::move(out));
  }
  return effect;
}

Status apply_prompt_progress(Request* request, ipc::PromptProgress progress) {
  const ipc::WeightBorders& borders = progress.weight_borders;
  if (!ipc::ascends(borders) || (!borders.empty() && borders.back() >= progress.n_done))
    return invalid_argument("borders of weight sets that do not ascend below " + std::to_string(progress.n_done));
  if (!borders.empty()) mark_degraded(request, rung_name(RungKind::kWeights4bit));
  // Once there are tokens the prompt is computed as it was; before, it may begin anew with another set.
  if (request->completion_tokens() == 0) request->prompt_borders = std::move(progress.weight_borders);
  return ok_status();
}

void mark_degraded(Request* request, const char* rung) {
  std::vector<std::string>& names = request->degraded;
  if (std::find(names.begin(), names.end(), rung) == names.end()) names.push_back(rung);
}

Result<std::vector<ipc::LogprobEntry>> apply_prompt_logprobs(Request* request,
                                                             ipc::PromptLogprobs message) {
  uint32_t known = request->n_prompt_logprobs;
  size_t end = message.first_index + message.entries.size();
  if (message.first_index > known || end > request->in.prompt.size())
    return invalid_argument("prompt log-probabilities from " + std::to_string(message.first_index) +
                            " to " + std::to_string(end) + " where " + std::to_string(known) +
                            " comes next");
  if (end <= known) return std::vector<ipc::LogprobEntry>{};
  auto first_new = message.entries.begin() + (known - message.first_index);
  std::vector<ipc::LogprobEntry> fresh(std::make_move_iterator(first_new),
                                       std::make_move_iterator(message.entries.end()));
  request->n_prompt_logprobs = static_cast<uint32_t>(end);
  return fresh;
}

ipc::Submit make_submit(const Request& request) {
  ipc::Submit submit;
  submit.id = request.wire_id;
  submit.prompt = request.in.prompt;
  for (size_t i = 0; i < request.choices.size(); ++i) {
    const Choice& choice = request.choices[i];
    if (choice.finish != FinishReason::kNone) continue;
    submit.choices.push_back({static_cast<uint32_t>(i), choice.generated, choice.bytes_released, choice.weight_borders});
  }
  submit.sampling = request.in.sampling;
  submit.stop = request.in.stop;
  submit.max_tokens = request.max_tokens;
  submit.prompt_logprobs = request.in.prompt_logprobs;
  submit.n_prompt_logprobs_known = request.n_prompt_logprobs;
  submit.priority = request.in.priority;
  submit.deadline_us = request.in.deadline_us;
  return submit;
}

api::StreamTiming timing_of(const Request& r, int64_t now_us) {
  api::StreamTiming t;
  t.total_ms = ms_between(r.in.received_us, now_us);
  t.queue_ms = ms_between(r.in.received_us, r.dispatched_us == 0 ? now_us : r.dispatched_us);
  int64_t prefill_end = r.first_token_us != 0 ? r.first_token_us : r.prompt_done_us;
  t.prefill_ms = ms_between(r.dispatched_us, prefill_end == 0 ? now_us : prefill_end);
  t.decode_ms = ms_between(r.first_token_us, now_us);
  t.ttft_ms = ms_between(r.in.received_us, r.first_token_us);
  return t;
}

const char* priority_name(ipc::Priority priority) {
  constexpr const char* kNames[] = {"high", "normal", "low"};
  return kNames[static_cast<int>(priority)];
}

std::string normal_outcome(const Request& request) {
  for (const Choice& choice : request.choices) {
    if (choice.finish == FinishReason::kDeadline) return "deadline";
  }
  return request.choices[0].finish == FinishReason::kLength ? "length" : "stop";
}

ipc::RequestRecord make_record(const Request& r, const std::string& outcome,
                               const api::ApiError* error, const std::string& model,
                               int64_t now_us) {
  ipc::RequestRecord record;
  api::StreamTiming timing = timing_of(r, now_us);
  record.id = r.in.id;
  record.received_us = r.received_utc_us;
  record.finished_us = utc_us();
  record.client = r.in.client;
  record.endpoint = r.in.endpoint;
  record.model = model;
  record.priority = priority_name(r.in.priority);
  record.prompt_tokens = static_cast<int64_t>(r.in.prompt.size());
  record.completion_tokens = r.completion_tokens();
  record.cached_tokens = r.n_cached;
  record.queue_ms = timing.queue_ms;
  record.prefill_ms = timing.prefill_ms;
  record.decode_ms = timing.decode_ms;
  record.total_ms = timing.total_ms;
  record.ttft_ms = timing.ttft_ms;
  record.status = outcome;
  for (const std::string& rung : r.degraded) record.degradation += (record.degradation.empty() ? "" : ",") + rung;
  record.weights = weights_of(r);
  FinishReason finish = r.choices[0].finish;
  if (error == nullptr) record.finish_reason = finish == FinishReason::kStop ? "stop" : "length";
  bool is_sent_as_200 = error == nullptr || (r.in.is_stream && r.is_reply_begun);
  record.http_status = is_sent_as_200 ? 200 : error->http_status;
  record.seed = r.in.sampling.seed;
  record.worker_generation = static_cast<int64_t>(r.worker_generation);
  record.n_dispatches = r.n_dispatches;
  if (error != nullptr) record.error = error->code + ": " + error->message;
  record.prompt_text = r.in.log_prompt_text;
  record.completion_text = r.completion_text;
  return record;
}

}  // namespace tandem
