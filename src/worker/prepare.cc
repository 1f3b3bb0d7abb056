#include "worker/prepare.h"

namespace tandem {
namespace {

ipc::PrepareReply refuse(const ipc::Prepare& request, const char* code, std::string error) {
  ipc::PrepareReply reply;
  reply.id = request.id;
  reply.error_code = code;
  reply.error = std::move(error);
  return reply;
}

Status prepare_chat(const ipc::Prepare& request, const TextModel& model, ipc::PrepareReply* reply) {
  std::vector<ChatMessage> messages;
  for (const ipc::Message& m : request.messages) messages.push_back({m.role, m.content, m.name});
  CHECK_ASSIGN(std::vector<PromptPiece> pieces,
               model.chat_template->render(messages, request.add_generation_prompt));
  if (request.want_prompt_text) {
    for (const PromptPiece& piece : pieces) reply->prompt_text += piece.text;
  }
  // add_special: the model's BOS, unless the template wrote it (never two).
  return encode_pieces(*model.tokenizer, pieces, true, &reply->ids);
}

}  // namespace

std::string check_ids(const std::vector<int32_t>& ids, int n_tokens) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < n_tokens) continue;
    return "token id at index " + std::to_string(i) + " must be >= 0 and <= " + std::to_string(n_tokens - 1) +
           ", got " + std::to_string(ids[i]);
  }
  return "";
}

ipc::PrepareReply prepare(const ipc::Prepare& request, const TextModel& model) {
  ipc::PrepareReply reply;
  reply.id = request.id;
  Status status;
  switch (request.kind) {
    case ipc::Prepare::Kind::kText:
      status = model.tokenizer->encode(request.text, {request.add_special, request.parse_special}, &reply.ids);
      if (!status.ok()) return refuse(request, "invalid_prompt", status.message());
      if (request.want_prompt_text) reply.prompt_text = request.text;
      break;
    case ipc::Prepare::Kind::kChat:
      if (model.chat_template == nullptr) return refuse(request, "no_chat_template", model.chat_template_error);
      status = prepare_chat(request, model, &reply);
      if (!status.ok()) return refuse(request, "template_error", status.message());
      break;
    case ipc::Prepare::Kind::kIds:
      if (std::string error = check_ids(request.ids, model.tokenizer->n_tokens()); !error.empty())
        return refuse(request, "invalid_prompt", error);
      reply.ids = request.ids;
      if (request.want_prompt_text) reply.prompt_text = model.tokenizer->decode(request.ids, false);
      break;
  }
  reply.ok = true;
  return reply;
}

ipc::DetokenizeReply detokenize(const ipc::Detokenize& request, const TextModel& model) {
  ipc::DetokenizeReply reply;
  reply.id = request.id;
  reply.error = check_ids(request.ids, model.tokenizer->n_tokens());
  reply.ok = reply.error.empty();
  if (reply.ok) reply.text = model.tokenizer->decode(request.ids, true);
  return reply;
}

}  // namespace tandem
