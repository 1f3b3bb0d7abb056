#include "api/reply_shapes.h"

#include <algorithm>
#include <cmath>

#include "base/hex.h"

namespace tandem::api {
namespace {

constexpr float kNoProbability = -9999.0f;  // what OpenAI's service writes for a probability of 0

float finite(float logprob) { return std::isfinite(logprob) ? std::min(logprob, 0.0f) : kNoProbability; }

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    size_t n = utf8_length(bytes);
    if (n == 0) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

// A token's text; tokens that are only part of a character are written as bytes:\xf0\x9f.
std::string token_text(const std::string& bytes) {
  if (is_text(bytes)) return bytes;
  std::string out = "bytes:";
  for (unsigned char c : bytes) {
    out += "\\x" + hex_of({&c, 1});
  }
  return out;
}

void write_chat_token(JsonWriter* out, const ipc::Logprob& token) {
  out->key("token").string(token_text(token.bytes)).key("logprob").number(finite(token.logprob));
  out->key("bytes").begin_array();
  for (unsigned char c : token.bytes) out->integer(c);
  out->end_array();
}

}  // namespace

void write_head(JsonWriter* out, const ReplyHead& head) {
  out->begin_object().key("id").string(head.id).key("object").string(head.object);
  out->key("created").integer(head.created).key("model").string(head.model);
  out->key("system_fingerprint").string("tandem-" TANDEM_VERSION);
}

void write_usage(JsonWriter* out, const StreamEvent& totals) {
  out->key("usage").begin_object();
  out->key("prompt_tokens").integer(totals.prompt_tokens);
  out->key("completion_tokens").integer(totals.completion_tokens);
  out->key("total_tokens").integer(totals.prompt_tokens + totals.completion_tokens);
  out->key("prompt_tokens_details").begin_object().key("cached_tokens").integer(totals.cached_tokens);
  out->end_object().end_object();
}

void write_tandem(JsonWriter* out, const StreamTiming& timing, const std::vector<std::string>& degraded,
                  const std::string& reason) {
  auto ms = [](double v) { return std::round(v * 1000) / 1000; };
  out->key("tandem").begin_object();
  out->key("queue_ms").number(ms(timing.queue_ms)).key("prefill_ms").number(ms(timing.prefill_ms));
  out->key("decode_ms").number(ms(timing.decode_ms)).key("degraded").begin_array();
  for (const std::string& rung : degraded) out->string(rung);
  out->end_array().key("reason");
  reason.empty() ? out->null() : out->string(reason);
  out->end_object();
}

void write_chat_logprobs(JsonWriter* out, const std::vector<ipc::LogprobEntry>& entries) {
  out->begin_object().key("content").begin_array();
  for (const ipc::LogprobEntry& entry : entries) {
    out->begin_object();
    write_chat_token(out, entry.chosen);
    out->key("top_logprobs").begin_array();
    for (const ipc::Logprob& other : entry.top) {
      out->begin_object();
      write_chat_token(out, other);
      out->end_object();
    }
    out->end_array().end_object();
  }
  out->end_array().key("refusal").null().end_object();
}

void LegacyLogprobs::write(JsonWriter* out, const std::vector<ipc::LogprobEntry>& entries, size_t n_without_value) {
  out->begin_object().key("tokens").begin_array();
  for (const auto& entry : entries) out->string(token_text(entry.chosen.bytes));
  out->end_array().key("token_logprobs").begin_array();
  for (size_t i = 0; i < entries.size(); ++i)
    i < n_without_value ? out->null() : out->number(finite(entries[i].chosen.logprob));
  out->end_array().key("top_logprobs").begin_array();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i < n_without_value) {
      out->null();
      continue;
    }
    std::vector<std::string> seen;
    out->begin_object();
    auto add = [&](const ipc::Logprob& token) {
      std::string text = token_text(token.bytes);
      if (std::find(seen.begin(), seen.end(), text) != seen.end()) return;
      out->key(text).number(finite(token.logprob));
      seen.push_back(std::move(text));
    };
    add(entries[i].chosen);
    for (const ipc::Logprob& other : entries[i].top) add(other);
    out->end_object();
  }
  out->end_array().key("text_offset").begin_array();
  for (const auto& entry : entries) {
    out->integer(offset_);
    for (size_t i = 0; i < entry.chosen.bytes.size(); ++i) {
      unsigned char c = static_cast<unsigned char>(entry.chosen.bytes[i]);
      bool is_dropped_blank = is_first_ && i == 0 && c == ' ' && !starts_with_blank_;
      if ((c & 0xC0) != 0x80 && !is_dropped_blank) ++offset_;  // counts the first byte of each character
    }
    if (!entry.chosen.bytes.empty()) is_first_ = false;  // control tokens have no text
  }
  out->end_array().end_object();
}

bool is_degraded(const std::vector<std::string>& degraded, std::string_view rung) {
  return std::find(degraded.begin(), degraded.end(), rung) != degraded.end();
}

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : separator) + word;
  return out;
}

}  // namespace tandem::api
