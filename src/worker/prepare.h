// Text and conversations to token ids and back, as the loaded model does it. Pure functions of the message and
// the model; thread-safe. Errors are answers with a code, never with the client's own bytes in them.
#pragma once

#include <string>

#include "ipc/messages.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

struct TextModel {
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: chat is refused with chat_template_error
  std::string chat_template_error;
};

ipc::PrepareReply prepare(const ipc::Prepare& request, const TextModel& model);
ipc::DetokenizeReply detokenize(const ipc::Detokenize& request, const TextModel& model);

// "" or what is wrong with ids that come from outside.
std::string check_ids(const std::vector<int32_t>& ids, int n_tokens);

}  // namespace tandem
