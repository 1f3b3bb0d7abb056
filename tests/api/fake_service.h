// An InferenceService with scripted streams, for tests of the API over real sockets.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "api/service.h"

namespace tandem::api {

// One step of a script: an event after a delay.
struct ScriptStep {
  StreamEvent event;
  int delay_ms = 0;
};
using Script = std::vector<ScriptStep>;

StreamEvent text_event(uint32_t choice, std::string text, std::vector<ipc::LogprobEntry> logprobs = {});
StreamEvent choice_end(uint32_t choice, ipc::FinishReason finish = ipc::FinishReason::kStop, std::string reason = "",
                       std::vector<std::string> degraded = {});
StreamEvent end_event(int64_t prompt, int64_t completion, int64_t cached = 0, std::vector<std::string> degraded = {});
StreamEvent error_event(const std::string& code, const std::string& message = "it broke");
ipc::LogprobEntry logprob_entry(std::string bytes, float logprob, std::vector<std::pair<std::string, float>> top = {});
// Each word a text event for every choice, then the ends.
Script words_script(const GenerateRequest& request, const std::vector<std::string>& words, int delay_ms = 0);

class FakeService : public InferenceService {
 public:
  // What a submit answers; called with the request. Default: "Hello", ", ", "world" for each choice.
  std::function<ApiResult<Script>(const GenerateRequest&)> script;
  std::function<std::optional<ApiError>(const ipc::Prepare&)> prepare_error;
  std::function<void(const CallLimits&)> prepare_wait;
  std::function<std::string(const ipc::Prepare&)> prepare_text;  // the prompt as text, instead of the request's own
  Readiness ready{Readiness::State::kReady, "", ""};
  std::string metrics = "# HELP x y\n";
  std::string status = R"({"state":"ready"})";
  std::vector<AdminCommand> commands;
  std::optional<ApiError> admin_error;
  std::vector<ipc::RequestRecord> rows;

  Readiness readiness() override { return ready; }
  std::optional<ipc::ModelInfo> model() override;
  std::string model_name() override { return "fake-model"; }
  int64_t model_created() override { return 1700000000; }
  ApiResult<PrepareOutcome> prepare(ipc::Prepare request, const CallLimits& limits) override;
  ApiResult<std::string> detokenize(std::vector<int32_t> ids, const CallLimits& limits) override;
  ApiResult<std::unique_ptr<ResponseStream>> submit(GenerateRequest request) override;
  void record_rejected(ipc::RequestRecord record) override;
  std::string metrics_text() override { return metrics; }
  std::string status_json() override {
    std::lock_guard lock(mutex_);
    return status;
  }
  void set_status(std::string json) {
    std::lock_guard lock(mutex_);
    status = std::move(json);
  }
  std::string config_text() override { return "[server]\nlisten = \"127.0.0.1:0\"\n"; }
  ApiResult<std::string> admin(const AdminCommand& command) override {
    std::lock_guard lock(mutex_);
    commands.push_back(command);
    if (admin_error) return *admin_error;
    return std::string("done");
  }
  ApiResult<std::vector<ipc::RequestRecord>> query_log(const ipc::RecordQuery& query) override;

  // What was seen, safe to read while the server runs.
  GenerateRequest last_request();
  ipc::Prepare last_prepare();
  ipc::RecordQuery last_query();
  std::vector<ipc::RequestRecord> rejected();
  // Streams destroyed before their end, and how long after submit. Waits up to `timeout_ms` for `n`.
  int wait_cancelled(int n, int timeout_ms);
  std::atomic<int> n_submitted{0}, n_live{0}, n_cancelled{0};

 private:
  friend class FakeStream;
  std::mutex mutex_;  // guards last_*, rejected_
  std::condition_variable changed_;
  GenerateRequest last_request_;
  ipc::Prepare last_prepare_;
  ipc::RecordQuery last_query_;
  std::vector<ipc::RequestRecord> rejected_;
};

}  // namespace tandem::api
