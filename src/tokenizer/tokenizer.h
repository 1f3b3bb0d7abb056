// Text to token ids and back, as the model file says: byte-level BPE ("gpt2" with its `pre` pattern) and
// SentencePiece-style ("llama"). Immutable after creation; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

// What a tokenizer is made of, free of any file format (gguf -> this happens in tokenizer_gguf in worker/).
struct Vocabulary {
  std::string model;                    // "gpt2", "llama"
  std::string pre;                      // "smollm", "llama-bpe", "qwen2", …
  std::vector<std::string> tokens;
  std::vector<float> scores;            // "llama"; else empty
  std::vector<int32_t> types;           // GGUF token types: 1 normal 2 unknown 3 control 4 user 5 unused 6 byte
  std::vector<std::string> merges;      // "gpt2"
  int32_t bos = -1, eos = -1, eot = -1, unknown = -1, padding = -1;
  std::vector<int32_t> extra_end_tokens;  // further end-of-generation ids
  bool add_bos = false, add_eos = false, add_space_prefix = false;
  std::string chat_template;            // empty: none
};

struct EncodeOptions {
  bool add_special = false;    // BOS/EOS as the model wants them (never a second BOS)
  bool parse_special = false;  // control tokens in the text become their ids; only for template scaffolding
};

class Tokenizer {
 public:
  // kInvalidArgument names the field; an unknown `pre` or model is kUnimplemented, by name.
  static Result<std::unique_ptr<Tokenizer>> create(Vocabulary vocabulary);
  virtual ~Tokenizer() = default;
  // Appends the ids of `text`. The text must be valid UTF-8: kInvalidArgument otherwise (offset named).
  virtual Status encode(std::string_view text, EncodeOptions options, std::vector<int32_t>* ids) const = 0;
  // Bytes of one token: may be part of a code point. Control tokens give "" unless `special`.
  virtual std::string token_bytes(int32_t id, bool special) const = 0;
  // Text of many tokens; a leading space that the model's encoder adds is removed at position 0.
  virtual std::string decode(std::span<const int32_t> ids, bool special) const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool is_end(int32_t id) const;                       // end of generation
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  int n_tokens() const { return static_cast<int>(vocabulary_.tokens.size()); }

 protected:
  Vocabulary vocabulary_;
  std::vector<int32_t> end_tokens_;
};

// A prompt in pieces: scaffolding (control tokens allowed) and text of the user (never parsed for them).
struct PromptPiece {
  std::string text;
  bool is_scaffold = false;
};
// Encodes pieces as one text, control tokens only where they lie inside scaffold pieces.
Status encode_pieces(const Tokenizer& tokenizer, std::span<const PromptPiece> pieces, bool add_special,
                     std::vector<int32_t>* ids);

// Incremental detokenizer: bytes come out only as whole code points. Invalid bytes become U+FFFD.
class DetokenizeStream {
 public:
  explicit DetokenizeStream(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  // Text that became complete with this token (may be empty). `starts_text`: strip the prefix space at 0.
  std::string push(int32_t id);
  std::string finish();  // what is left, incomplete code points as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
  bool at_start_ = true;
};

}  // namespace tandem
