// The JSON of inference replies, exactly as OpenAI's clients expect it: pieces that chat and completions,
// plain and streamed, put together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "api/json_writer.h"
#include "api/service.h"

namespace tandem::api {

struct ReplyHead {
  std::string id;      // "chatcmpl-…", "cmpl-…"
  std::string object;  // "chat.completion.chunk", …
  int64_t created = 0;
  std::string model;
};

// The open object with id, object, created, model, system_fingerprint; the caller goes on.
void write_head(JsonWriter* out, const ReplyHead& head);
// "usage": {…}
void write_usage(JsonWriter* out, const StreamEvent& totals);
// "tandem": {queue_ms, prefill_ms, decode_ms, degraded, reason}
void write_tandem(JsonWriter* out, const StreamTiming& timing, const std::vector<std::string>& degraded,
                  const std::string& reason);
// {"content":[{token, logprob, bytes, top_logprobs}], "refusal":null}
void write_chat_logprobs(JsonWriter* out, const std::vector<ipc::LogprobEntry>& entries);

// The legacy shape {tokens, token_logprobs, top_logprobs, text_offset}; one object a choice, since offsets
// (in characters) run on from chunk to chunk.
class LegacyLogprobs {
 public:
  // The first `n_without_value` entries (an echoed prompt's first token) have null instead of a value.
  void write(JsonWriter* out, const std::vector<ipc::LogprobEntry>& entries, size_t n_without_value = 0);
  // Tokens of SentencePiece vocabularies may begin the text with a blank that the text has not.
  void set_text_start(std::string_view text) { starts_with_blank_ = text.substr(0, 1) == " "; }

 private:
  int64_t offset_ = 0;
  bool is_first_ = true;
  bool starts_with_blank_ = true;
};

bool is_degraded(const std::vector<std::string>& degraded, std::string_view rung);
std::string join(const std::vector<std::string>& words, const char* separator);

}  // namespace tandem::api
