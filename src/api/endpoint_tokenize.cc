// POST /tokenize, /detokenize, /apply-template: what the model's tokenizer and template make of text.
#include "api/endpoints.h"
#include "api/json_writer.h"

namespace tandem::api {

HttpReply handle_tokenize(const ApiContext& api, HttpRequest& http) {
  auto request = parse_tokenize_request(http.body);
  if (!request.ok()) return error_reply(request.error());
  ipc::Prepare ask;
  ask.text = std::move(request.value().content);
  ask.add_special = request.value().add_special;
  ask.parse_special = request.value().parse_special;
  auto prepared = api.service.prepare(std::move(ask), call_limits(http, api.limits.timeout_ms));
  if (!prepared.ok()) return error_reply(prepared.error());
  JsonWriter out;
  out.begin_object().key("tokens").begin_array();
  for (int32_t id : prepared.value().ids) out.integer(id);
  out.end_array().end_object();
  return json_reply(out.take());
}

HttpReply handle_detokenize(const ApiContext& api, HttpRequest& http) {
  auto ids = parse_detokenize_request(http.body);
  if (!ids.ok()) return error_reply(ids.error());
  std::string text;
  if (!ids.value().empty()) {
    auto reply = api.service.detokenize(std::move(ids.value()), call_limits(http, api.limits.timeout_ms));
    if (!reply.ok()) return error_reply(reply.error());
    text = std::move(reply.value());
  }
  JsonWriter out;
  out.begin_object().key("content").string(text).end_object();
  return json_reply(out.take());
}

HttpReply handle_apply_template(const ApiContext& api, HttpRequest& http) {
  auto request = parse_template_request(http.body);
  if (!request.ok()) return error_reply(request.error());
  ipc::Prepare ask;
  ask.kind = ipc::Prepare::Kind::kChat;
  ask.messages = std::move(request.value().messages);
  ask.add_generation_prompt = request.value().add_generation_prompt;
  ask.want_prompt_text = true;
  auto prepared = api.service.prepare(std::move(ask), call_limits(http, api.limits.timeout_ms));
  if (!prepared.ok()) return error_reply(prepared.error());
  JsonWriter out;
  out.begin_object().key("prompt").string(prepared.value().prompt_text).end_object();
  return json_reply(out.take());
}

}  // namespace tandem::api
