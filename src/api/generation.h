// One inference request in flight: its prompts prepared and submitted, their events merged into one sequence
// with choice numbers of the whole reply (prompt * n + choice). Confined to the connection's thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/http_types.h"
#include "api/request_filter.h"
#include "api/service.h"
#include "api/validation.h"
#include "base/config.h"

namespace tandem::api {

// Those limits.* that a reload changes while requests are read with them.
struct LiveLimits {
  std::atomic<int64_t> timeout_ms, max_choices, max_stop_strings, max_stop_bytes;
  explicit LiveLimits(const Config& config) { take(config); }
  void take(const Config& config);
  RequestBounds bounds() const;
};

struct ApiContext {
  const Config& config;
  InferenceService& service;
  const RequestFilter& filter;
  const LiveLimits& limits;
};

struct GenerationEvent {
  size_t prompt = 0;
  uint32_t choice = 0;  // of the reply
  StreamEvent event;    // kEnd only once, after all prompts: sums of the counts, times of the slowest
};

class Generation {
 public:
  // Checks model and priority, prepares and submits every prompt. An error: nothing is left running.
  // Notes the priority in `http`, which must outlive the generation.
  static ApiResult<std::unique_ptr<Generation>> start(const ApiContext& api, HttpRequest& http,
                                                      const std::string& endpoint, InferenceRequest request);
  // The next event, or kIdle after `wait_ms`. Looks at the client at least every 50 ms: when it has left the
  // answer is kError with code "client_gone". After kEnd or kError nothing more comes.
  GenerationEvent next(int64_t wait_ms);

  const InferenceRequest& request() const { return request_; }
  const std::string& prompt_text(size_t prompt) const { return prompts_[prompt].text; }
  size_t n_choices() const { return prompts_.size() * static_cast<size_t>(request_.n_choices); }
  const std::string& model() const { return model_; }

 private:
  struct Prompt {
    std::unique_ptr<ResponseStream> stream;  // null: ended
    std::string text;
  };
  Generation(const ApiContext& api, const HttpRequest& http, InferenceRequest request);
  std::optional<ApiError> submit_all(const std::string& endpoint);
  ApiResult<GenerateRequest> prepare(size_t index, const std::string& endpoint, std::string* text);
  std::optional<ApiError> filter(size_t index, const std::string& endpoint) const;
  bool poll_once(int64_t wait_ms, GenerationEvent* out);
  bool accept(size_t index, StreamEvent event, GenerationEvent* out);

  const ApiContext& api_;
  const HttpRequest& http_;
  InferenceRequest request_;
  std::string model_;
  ipc::Priority priority_ = ipc::Priority::kNormal;
  int64_t deadline_us_ = 0;
  std::vector<Prompt> prompts_;
  size_t n_live_ = 0;
  StreamEvent totals_;
};

const char* finish_name(ipc::FinishReason finish);  // "stop", "length"

// 404 unless `model` is absent or the served one.
std::optional<ApiError> check_model(const ApiContext& api, const std::optional<std::string>& model);
CallLimits call_limits(const HttpRequest& http, int64_t timeout_ms);

}  // namespace tandem::api
