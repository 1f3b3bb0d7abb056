// Request bodies to structs, with every bound of the API stated in the message. Pure: bytes in, struct or
// ApiError out; no HTTP, no service (fuzzed). Parameters and what becomes of each: README.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_error.h"
#include "ipc/messages.h"

namespace tandem::api {

constexpr size_t kMaxPrompts = 128;         // prompts in one completions request
constexpr size_t kMaxLogitBias = 1024;
constexpr int kMaxTopLogprobs = 20;
constexpr int64_t kMaxTimeoutSeconds = 86400;

struct RequestBounds {
  int max_choices = 16;
  int max_stop_strings = 16;
  int max_stop_bytes = 1024;
};

struct PromptInput {
  bool is_ids = false;
  std::string text;
  std::vector<int32_t> ids;
};

struct InferenceRequest {
  std::optional<std::string> model;
  std::vector<ipc::Message> messages;  // chat
  std::vector<PromptInput> prompts;    // completions
  ipc::Sampling sampling;              // n_top_logprobs as asked
  bool has_seed = false;
  std::vector<std::string> stop;
  int n_choices = 1;
  std::optional<uint32_t> max_tokens;
  bool is_stream = false;
  bool include_usage = false;
  bool echo = false;                   // completions
  std::optional<ipc::Priority> priority;
  std::optional<int64_t> timeout_ms;
  std::vector<std::string> ignored;    // for X-Tandem-Ignored

  bool wants_logprobs() const { return sampling.n_top_logprobs >= 0; }
};

struct TokenizeRequest {
  std::string content;
  bool add_special = false, parse_special = false;
};

ApiResult<InferenceRequest> parse_chat_request(std::string_view body, const RequestBounds& bounds);
ApiResult<InferenceRequest> parse_completion_request(std::string_view body, const RequestBounds& bounds);
ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body);
ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body);
struct TemplateRequest {
  std::vector<ipc::Message> messages;
  bool add_generation_prompt = true;
};
ApiResult<TemplateRequest> parse_template_request(std::string_view body);

}  // namespace tandem::api
