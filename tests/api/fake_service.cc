#include "fake_service.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"

namespace tandem::api {

StreamEvent text_event(uint32_t choice, std::string text, std::vector<ipc::LogprobEntry> logprobs) {
  StreamEvent e;
  e.kind = StreamEvent::Kind::kText;
  e.choice = choice;
  e.text = std::move(text);
  e.logprobs = std::move(logprobs);
  return e;
}

StreamEvent choice_end(uint32_t choice, ipc::FinishReason finish, std::string reason, std::vector<std::string> degraded) {
  StreamEvent e;
  e.kind = StreamEvent::Kind::kChoiceEnd;
  e.choice = choice;
  e.finish = finish;
  e.reason = std::move(reason);
  e.degraded = std::move(degraded);
  e.timing = {1.5, 2.5, 3.5, 4, 8};
  return e;
}

StreamEvent end_event(int64_t prompt, int64_t completion, int64_t cached, std::vector<std::string> degraded) {
  StreamEvent e;
  e.kind = StreamEvent::Kind::kEnd;
  e.prompt_tokens = prompt;
  e.completion_tokens = completion;
  e.cached_tokens = cached;
  e.degraded = std::move(degraded);
  e.timing = {1.5, 2.5, 3.5, 4, 8};
  return e;
}

StreamEvent error_event(const std::string& code, const std::string& message) {
  StreamEvent e;
  e.kind = StreamEvent::Kind::kError;
  e.error = api_error(code, message);
  return e;
}

ipc::LogprobEntry logprob_entry(std::string bytes, float logprob, std::vector<std::pair<std::string, float>> top) {
  ipc::LogprobEntry entry;
  entry.chosen = {1, logprob, std::move(bytes)};
  for (auto& [text, value] : top) entry.top.push_back({2, value, text});
  return entry;
}

Script words_script(const GenerateRequest& request, const std::vector<std::string>& words, int delay_ms) {
  Script script;
  uint32_t n = static_cast<uint32_t>(request.n_choices);
  for (const std::string& word : words)
    for (uint32_t c = 0; c < n; ++c) script.push_back({text_event(c, word), delay_ms});
  for (uint32_t c = 0; c < n; ++c) script.push_back({choice_end(c), delay_ms});
  script.push_back({end_event(static_cast<int64_t>(request.prompt.size()), static_cast<int64_t>(words.size()) * n), 0});
  return script;
}

// Delivers its script's events, each `delay_ms` after the one before was due.
class FakeStream : public ResponseStream {
 public:
  FakeStream(FakeService* service, Script script) : service_(service), script_(std::move(script)) {
    ++service_->n_live;
    due_us_ = monotonic_us() + (script_.empty() ? 0 : script_[0].delay_ms * 1000);
  }
  ~FakeStream() override {
    --service_->n_live;
    std::lock_guard lock(service_->mutex_);
    if (!is_ended_) ++service_->n_cancelled;
    service_->changed_.notify_all();
  }
  StreamEvent next(std::chrono::milliseconds wait) override {
    int64_t until_us = monotonic_us() + wait.count() * 1000;
    if (at_ >= script_.size() || due_us_ > until_us) {  // an empty rest: silent for ever
      std::this_thread::sleep_for(wait);
      return {};
    }
    int64_t now_us = monotonic_us();
    if (due_us_ > now_us) std::this_thread::sleep_for(std::chrono::microseconds(due_us_ - now_us));
    StreamEvent event = script_[at_++].event;
    if (at_ < script_.size()) due_us_ = std::max(due_us_, now_us) + script_[at_].delay_ms * 1000;
    is_ended_ = event.kind == StreamEvent::Kind::kEnd || event.kind == StreamEvent::Kind::kError;
    return event;
  }

 private:
  FakeService* service_;
  Script script_;
  size_t at_ = 0;
  int64_t due_us_ = 0;
  bool is_ended_ = false;
};

std::optional<ipc::ModelInfo> FakeService::model() {
  ipc::ModelInfo info;
  info.name = "fake-model";
  info.architecture = "llama";
  info.vocab_size = 1000;
  info.context_tokens = 4096;
  return info;
}

// Byte-wise "tokenizer": an id is a byte's value.
ApiResult<PrepareOutcome> FakeService::prepare(ipc::Prepare request, const CallLimits& limits) {
  {
    std::lock_guard lock(mutex_);
    last_prepare_ = request;
  }
  if (prepare_wait) prepare_wait(limits);
  if (limits.is_client_gone && limits.is_client_gone()) return api_error("client_gone", "the client left");
  if (prepare_error)
    if (auto error = prepare_error(request)) return *error;
  PrepareOutcome outcome;
  outcome.prompt_text = request.text;
  if (request.kind == ipc::Prepare::Kind::kChat)
    for (const auto& m : request.messages) outcome.prompt_text += "<" + m.role + ">" + m.content;
  for (unsigned char c : outcome.prompt_text) outcome.ids.push_back(c);
  if (request.kind == ipc::Prepare::Kind::kIds) outcome.ids = request.ids;
  if (prepare_text) outcome.prompt_text = prepare_text(request);
  if (!request.want_prompt_text) outcome.prompt_text.clear();
  return outcome;
}

ApiResult<std::string> FakeService::detokenize(std::vector<int32_t> ids, const CallLimits&) {
  std::string text;
  for (int32_t id : ids) text += static_cast<char>(id);
  return text;
}

ApiResult<std::unique_ptr<ResponseStream>> FakeService::submit(GenerateRequest request) {
  ++n_submitted;
  {
    std::lock_guard lock(mutex_);
    last_request_ = request;
  }
  Script steps;
  if (script) {
    auto answer = script(request);
    if (!answer.ok()) return answer.error();
    steps = std::move(answer.value());
  } else {
    steps = words_script(request, {"Hello", ", ", "world"});
  }
  return std::unique_ptr<ResponseStream>(new FakeStream(this, std::move(steps)));
}

void FakeService::record_rejected(ipc::RequestRecord record) {
  std::lock_guard lock(mutex_);
  rejected_.push_back(std::move(record));
  changed_.notify_all();
}

ApiResult<std::vector<ipc::RequestRecord>> FakeService::query_log(const ipc::RecordQuery& query) {
  std::lock_guard lock(mutex_);
  last_query_ = query;
  return rows;
}

GenerateRequest FakeService::last_request() {
  std::lock_guard lock(mutex_);
  return last_request_;
}
ipc::Prepare FakeService::last_prepare() {
  std::lock_guard lock(mutex_);
  return last_prepare_;
}
ipc::RecordQuery FakeService::last_query() {
  std::lock_guard lock(mutex_);
  return last_query_;
}
std::vector<ipc::RequestRecord> FakeService::rejected() {
  std::lock_guard lock(mutex_);
  return rejected_;
}
int FakeService::wait_cancelled(int n, int timeout_ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return n_cancelled >= n; });
  return n_cancelled;
}

}  // namespace tandem::api
