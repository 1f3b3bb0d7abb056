// POST /v1/chat/completions: the shape of its replies.
#include "api/endpoints.h"
#include "api/inference_reply.h"

namespace tandem::api {
namespace {

class ChatShape : public ReplyShape {
 public:
  const char* id_prefix() const override { return "chatcmpl-"; }
  const char* object(bool is_stream) const override { return is_stream ? "chat.completion.chunk" : "chat.completion"; }
  bool has_role_chunk() const override { return true; }

  void write_role(JsonWriter* out, uint32_t choice) override {
    out->begin_object().key("index").integer(choice);
    out->key("delta").begin_object().key("role").string("assistant").key("content").string("").end_object();
    out->key("logprobs").null().key("finish_reason").null().end_object();
  }

  void write_delta(JsonWriter* out, const ChoicePart& part, bool has_logprobs) override {
    out->begin_object().key("index").integer(part.choice).key("delta").begin_object();
    if (!part.is_end) out->key("content").string(part.text);
    out->end_object().key("logprobs");
    has_logprobs && !part.is_end ? write_chat_logprobs(out, part.logprobs) : void(out->null());
    write_finish(out, part);
    out->end_object();
  }

  void write_choice(JsonWriter* out, const ChoicePart& part, bool has_logprobs) override {
    out->begin_object().key("index").integer(part.choice).key("message").begin_object();
    out->key("role").string("assistant").key("content").string(part.text).key("refusal").null().end_object();
    out->key("logprobs");
    has_logprobs ? write_chat_logprobs(out, part.logprobs) : void(out->null());
    write_finish(out, part);
    out->end_object();
  }

 private:
  static void write_finish(JsonWriter* out, const ChoicePart& part) {
    out->key("finish_reason");
    part.is_end ? out->string(finish_name(part.finish)) : out->null();
  }
};

}  // namespace

HttpReply handle_chat(const ApiContext& api, HttpRequest& http) {
  auto request = parse_chat_request(http.body, api.limits.bounds());
  if (!request.ok()) return error_reply(request.error());
  std::string().swap(http.body);  // megabytes, and the reply may run for minutes
  return run_inference(api, http, "chat", std::move(request.value()), std::make_unique<ChatShape>());
}

}  // namespace tandem::api
