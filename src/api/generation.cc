#include "api/generation.h"

#include <sys/random.h>

#include <algorithm>

#include "api/json_fields.h"
#include "api/keys.h"
#include "base/clock.h"

namespace tandem::api {
namespace {

constexpr int64_t kClientProbeMs = 50;  // about a step: a client that leaves frees its pages this soon
constexpr int64_t kMergePollMs = 5;     // several prompts: how long one is waited for before the others

ApiResult<ipc::Priority> choose_priority(const InferenceRequest& request, const HttpRequest& http) {
  std::optional<ipc::Priority> asked = request.priority;
  const std::string* header = http.header("x-priority");
  if (!asked && header != nullptr) {
    asked = parse_priority(*header);
    if (!asked)
      return api_error("invalid_value", "header `X-Priority` must be high, normal or low", "X-Priority");
  }
  if (!asked) return std::max(ipc::Priority::kNormal, http.highest_priority);
  if (*asked < http.highest_priority)
    return api_error("priority_not_allowed",
                     std::string("this key may claim priority ") + priority_name(http.highest_priority) +
                         " at most, got " + priority_name(*asked),
                     "priority");
  return *asked;
}

uint64_t random_seed() {
  uint64_t seed = 0;
  while (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
  }
  return seed;
}

std::optional<ApiError> check_logit_bias(const ipc::Sampling& sampling, std::optional<ipc::ModelInfo> model) {
  if (!model || model->vocab_size <= 0) return std::nullopt;
  for (const auto& [id, bias] : sampling.logit_bias)
    if (id >= model->vocab_size)
      return api_error("invalid_value",
                       "`logit_bias` must have token ids < " + std::to_string(model->vocab_size) + ", got " +
                           std::to_string(id),
                       "logit_bias");
  return std::nullopt;
}

}  // namespace

const char* finish_name(ipc::FinishReason finish) {
  return finish == ipc::FinishReason::kStop ? "stop" : "length";
}

std::optional<ApiError> check_model(const ApiContext& api, const std::optional<std::string>& model) {
  if (!model || *model == api.service.model_name()) return std::nullopt;
  std::string asked = safe_word(*model);
  return api_error("model_not_found",
                   (asked == "?" ? "the model asked for" : "the model `" + asked + "`") +
                       " is not served here; this server has `" + api.service.model_name() + "`",
                   "model");
}

void LiveLimits::take(const Config& config) {
  timeout_ms = config.limits_timeout_ms;
  max_choices = config.limits_max_choices;
  max_stop_strings = config.limits_max_stop_strings;
  max_stop_bytes = config.limits_max_stop_bytes;
}

RequestBounds LiveLimits::bounds() const {
  return {static_cast<int>(max_choices), static_cast<int>(max_stop_strings), static_cast<int>(max_stop_bytes)};
}

CallLimits call_limits(const HttpRequest& http, int64_t timeout_ms) {
  return {http.received_us + timeout_ms * 1000,
          [&http] { return http.is_client_gone() || http.is_stopping(); }};
}

Generation::Generation(const ApiContext& api, const HttpRequest& http, InferenceRequest request)
    : api_(api), http_(http), request_(std::move(request)), model_(api.service.model_name()) {
  deadline_us_ = http.received_us + request_.timeout_ms.value_or(api.limits.timeout_ms) * 1000;
}

ApiResult<std::unique_ptr<Generation>> Generation::start(const ApiContext& api, HttpRequest& http,
                                                         const std::string& endpoint, InferenceRequest request) {
  if (auto error = check_model(api, request.model)) return *error;
  auto priority = choose_priority(request, http);
  if (!priority.ok()) return priority.error();
  std::unique_ptr<Generation> generation(new Generation(api, http, std::move(request)));
  generation->priority_ = http.priority = priority.value();
  if (!generation->request_.has_seed) generation->request_.sampling.seed = random_seed();
  if (auto error = generation->submit_all(endpoint)) return *error;
  return generation;
}

// What the client wrote, message by message; never what the template adds. Token ids have no text yet: see prepare().
std::optional<ApiError> Generation::filter(size_t index, const std::string& endpoint) const {
  if (!api_.filter.applies_to(http_)) return std::nullopt;
  if (endpoint != "chat") return api_.filter.check(http_, request_.prompts[index].text, "prompt");
  for (size_t i = 0; i < request_.messages.size(); ++i)
    if (auto error = api_.filter.check(http_, request_.messages[i].content, "messages[" + std::to_string(i) + "]")) return error;
  return std::nullopt;
}

ApiResult<GenerateRequest> Generation::prepare(size_t index, const std::string& endpoint, std::string* text) {
  if (auto error = filter(index, endpoint)) return *error;
  bool filters_ids = endpoint != "chat" && request_.prompts[index].is_ids && api_.filter.applies_to(http_);
  ipc::Prepare ask;
  ask.want_prompt_text = request_.echo || api_.config.log_text || filters_ids;
  if (endpoint == "chat") {
    ask.kind = ipc::Prepare::Kind::kChat;
    ask.messages = std::move(request_.messages);
  } else if (request_.prompts[index].is_ids) {
    ask.kind = ipc::Prepare::Kind::kIds;
    ask.ids = std::move(request_.prompts[index].ids);
  } else {
    ask.text = std::move(request_.prompts[index].text);
  }
  int64_t timeout_ms = (deadline_us_ - http_.received_us) / 1000;
  auto prepared = api_.service.prepare(std::move(ask), call_limits(http_, timeout_ms));
  if (!prepared.ok()) return prepared.error();
  if (filters_ids)
    if (auto error = api_.filter.check(http_, prepared.value().prompt_text, "prompt")) return *error;
  if (prepared.value().ids.empty())
    return api_error("invalid_prompt", "the prompt is empty: it has no tokens", endpoint == "chat" ? "messages" : "prompt");
  GenerateRequest g;
  g.id = http_.id;
  g.endpoint = endpoint;
  g.client = http_.client;
  g.prompt = std::move(prepared.value().ids);
  g.sampling = request_.sampling;
  g.stop = request_.stop;
  g.n_choices = request_.n_choices;
  g.max_tokens = request_.max_tokens;
  g.prompt_logprobs = request_.echo && request_.wants_logprobs();
  g.priority = priority_;
  g.received_us = http_.received_us;
  g.deadline_us = deadline_us_;
  g.is_stream = request_.is_stream;
  if (api_.config.log_text) g.log_prompt_text = prepared.value().prompt_text;
  *text = std::move(prepared.value().prompt_text);
  return g;
}

std::optional<ApiError> Generation::submit_all(const std::string& endpoint) {
  size_t n = endpoint == "chat" ? 1 : request_.prompts.size();
  std::vector<GenerateRequest> ready;
  for (size_t i = 0; i < n; ++i) {
    prompts_.emplace_back();
    auto one = prepare(i, endpoint, &prompts_.back().text);
    if (!one.ok()) return one.error();
    if (n > 1) one.value().id += "-" + std::to_string(i);
    ready.push_back(std::move(one.value()));
  }
  if (auto error = check_logit_bias(request_.sampling, api_.service.model())) return error;
  for (size_t i = 0; i < n; ++i) {
    auto stream = api_.service.submit(std::move(ready[i]));
    if (!stream.ok()) return stream.error();  // those before end with this object
    prompts_[i].stream = std::move(stream.value());
    ++n_live_;
  }
  return std::nullopt;
}

// Turns one prompt's event into one of the reply. False: nothing to tell (another prompt's end).
bool Generation::accept(size_t index, StreamEvent event, GenerationEvent* out) {
  if (event.kind == StreamEvent::Kind::kIdle) return false;
  if (event.kind == StreamEvent::Kind::kEnd) {
    prompts_[index].stream.reset();
    totals_.prompt_tokens += event.prompt_tokens;
    totals_.completion_tokens += event.completion_tokens;
    totals_.cached_tokens += event.cached_tokens;
    if (event.timing.total_ms >= totals_.timing.total_ms) totals_.timing = event.timing;
    for (const std::string& rung : event.degraded)
      if (std::find(totals_.degraded.begin(), totals_.degraded.end(), rung) == totals_.degraded.end())
        totals_.degraded.push_back(rung);
    if (--n_live_ > 0) return false;
    event = totals_;
    event.kind = StreamEvent::Kind::kEnd;
  }
  if (event.kind == StreamEvent::Kind::kError) {
    for (Prompt& prompt : prompts_) prompt.stream.reset();
    n_live_ = 0;
    if (!event.error) event.error = api_error("internal_error", "the request failed");
  }
  out->prompt = index;
  out->choice = static_cast<uint32_t>(index) * static_cast<uint32_t>(request_.n_choices) + event.choice;
  out->event = std::move(event);
  return true;
}

// One look at every live prompt; waits on the first for a while when none has anything.
bool Generation::poll_once(int64_t wait_ms, GenerationEvent* out) {
  if (n_live_ == 1) {
    for (size_t i = 0; i < prompts_.size(); ++i)
      if (prompts_[i].stream != nullptr)
        return accept(i, prompts_[i].stream->next(std::chrono::milliseconds(wait_ms)), out);
  }
  for (size_t i = 0; i < prompts_.size(); ++i)
    if (prompts_[i].stream != nullptr && accept(i, prompts_[i].stream->next(std::chrono::milliseconds(0)), out))
      return true;
  for (size_t i = 0; i < prompts_.size(); ++i)
    if (prompts_[i].stream != nullptr)
      return accept(i, prompts_[i].stream->next(std::chrono::milliseconds(std::min(wait_ms, kMergePollMs))), out);
  return false;
}

GenerationEvent Generation::next(int64_t wait_ms) {
  GenerationEvent out;
  int64_t until_us = monotonic_us() + wait_ms * 1000;
  while (n_live_ > 0) {
    const char* code = http_.is_client_gone() ? "client_gone" : http_.is_stopping() ? "aborted" : nullptr;
    if (code != nullptr) {
      StreamEvent event;
      event.kind = StreamEvent::Kind::kError;
      event.error = api_error(code, *code == 'c' ? "the client left" : "the server is shutting down");
      accept(0, std::move(event), &out);
      return out;
    }
    int64_t left_ms = std::max<int64_t>(0, (until_us - monotonic_us() + 999) / 1000);
    if (poll_once(std::min(left_ms, kClientProbeMs), &out)) return out;
    if (left_ms == 0) break;
  }
  return out;  // kIdle
}

}  // namespace tandem::api
