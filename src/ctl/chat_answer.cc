#include "ctl/chat_answer.h"

#include "ctl/json_read.h"

namespace tandem::ctl {

std::string ChatAnswer::feed(std::string_view bytes) {
  const size_t before = text_.size();
  for (const std::string& payload : parser_.feed(bytes))
    if (error_.empty() && !is_done_) event(payload);
  return text_.substr(before);
}

void ChatAnswer::event(const std::string& payload) {
  if (payload == "[DONE]") return void(is_done_ = true);
  const JsonDocument json(payload);
  if (!json.is_object()) return void(error_ = "an event of the stream is not JSON");
  if (auto error = json.error()) return void(error_ = *error);
  for (const JsonPart& choice : json.list("choices")) {
    text_ += choice.raw_text("delta.content").value_or("");
    if (auto reason = choice.text("finish_reason")) finish_reason_ = *reason;
  }
}

}  // namespace tandem::ctl
