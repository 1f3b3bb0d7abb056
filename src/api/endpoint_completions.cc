// POST /v1/completions: the shape of its replies.
#include <map>

#include "api/endpoints.h"
#include "api/inference_reply.h"

namespace tandem::api {
namespace {

class CompletionShape : public ReplyShape {
 public:
  const char* id_prefix() const override { return "cmpl-"; }
  const char* object(bool) const override { return "text_completion"; }

  void write_delta(JsonWriter* out, const ChoicePart& part, bool has_logprobs) override {
    write(out, part, has_logprobs && !part.is_end);
  }
  void write_choice(JsonWriter* out, const ChoicePart& part, bool has_logprobs) override {
    write(out, part, has_logprobs);
  }

 private:
  void write(JsonWriter* out, const ChoicePart& part, bool has_logprobs) {
    out->begin_object().key("index").integer(part.choice).key("text").string(part.text).key("logprobs");
    if (has_logprobs) {
      auto [found, is_new] = logprobs_.try_emplace(part.choice);
      if (is_new) found->second.set_text_start(part.text);
      found->second.write(out, part.logprobs, part.n_without_value);
    } else {
      out->null();
    }
    out->key("finish_reason");
    part.is_end ? out->string(finish_name(part.finish)) : out->null();
    out->end_object();
  }
  std::map<uint32_t, LegacyLogprobs> logprobs_;  // per choice: offsets run on
};

}  // namespace

HttpReply handle_completions(const ApiContext& api, HttpRequest& http) {
  auto request = parse_completion_request(http.body, api.limits.bounds());
  if (!request.ok()) return error_reply(request.error());
  std::string().swap(http.body);  // megabytes, and the reply may run for minutes
  return run_inference(api, http, "completions", std::move(request.value()), std::make_unique<CompletionShape>());
}

}  // namespace tandem::api
