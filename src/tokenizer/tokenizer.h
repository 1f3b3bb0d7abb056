// Text to token ids and back, as the model file says: byte-level BPE ("gpt2" with its `pre`
// pattern) and SentencePiece-style ("llama"). Immutable after creation; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

// Token types as GGUF numbers them (tokenizer.ggml.token_type).
enum TokenType : int32_t {
  kTokenNormal = 1,
  kTokenUnknown,
  kTokenControl,
  kTokenUserDefined,
  kTokenUnused,
  kTokenByte,
};

// What a tokenizer is made of, free of any file format (worker/vocabulary_gguf fills it from a GGUF
// file).
struct Vocabulary {
  std::string model;  // "gpt2", "llama"
  std::string pre;    // "smollm", "llama-bpe", "qwen2", …
  std::vector<std::string> tokens;
  std::vector<float> scores;        // "llama"; else empty
  std::vector<int32_t> types;       // TokenType; empty: all normal
  std::vector<std::string> merges;  // "gpt2"
  int32_t bos = -1, eos = -1, eot = -1, unknown = -1, padding = -1;
  std::vector<int32_t> extra_end_tokens;  // further end-of-generation ids
  std::vector<int32_t>
      strip_right_tokens;  // control tokens that swallow the blanks after them (phi-3)
  bool add_bos = false, add_eos = false, add_space_prefix = false;
  std::string chat_template;  // empty: none
};

struct EncodeOptions {
  bool add_special = false;  // BOS/EOS as the model wants them (never a second BOS)
  bool parse_special =
      false;  // control tokens in the text become their ids; only for template scaffolding
};

// A half-open byte range of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// A special token (id >= 0), or text that holds none (id = -1, never empty).
struct TextFragment {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

class SpecialMatcher;

class Tokenizer {
 public:
  // kInvalidArgument names the field; an unknown `pre` or model is kUnimplemented, by name.
  static Result<std::unique_ptr<Tokenizer>> create(Vocabulary vocabulary);
  virtual ~Tokenizer();
  // Appends the ids of `text`. The text must be valid UTF-8: kInvalidArgument otherwise (offset
  // named).
  Status encode(std::string_view text, EncodeOptions options, std::vector<int32_t>* ids) const;
  // The same, with control tokens parsed only where they lie whole inside one of `special_ranges`
  // (ascending, disjoint). User-defined tokens are ordinary text and match anywhere.
  Status encode_ranges(std::string_view text, std::span<const TextRange> special_ranges,
                       bool add_special, std::vector<int32_t>* ids) const;
  // Bytes of one token: may be part of a code point. Control tokens give "" unless `special`; so do
  // ids outside the vocabulary.
  std::string token_bytes(int32_t id, bool special) const;
  // Text of many tokens; a leading space that the model's encoder adds is removed at position 0.
  // Bytes that are not UTF-8 become U+FFFD, so the result always is.
  std::string decode(std::span<const int32_t> ids, bool special) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }
  bool is_end(int32_t id) const;  // end of generation
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }
  int n_tokens() const { return static_cast<int>(vocabulary_.tokens.size()); }

 protected:
  explicit Tokenizer(Vocabulary vocabulary);
  // Appends the ids of all fragments, in order. The fragments cover `text` (valid UTF-8) but for
  // blanks that a special token swallowed.
  virtual Status encode_fragments(std::string_view text, std::span<const TextFragment> fragments,
                                  std::vector<int32_t>* ids) const = 0;
  // Bytes of a token of normal or byte type, undoing the vocabulary's spelling.
  virtual std::string spelled_bytes(int32_t id) const = 0;

  Vocabulary vocabulary_;

 private:
  std::vector<int32_t> end_tokens_;  // ascending
  std::unique_ptr<SpecialMatcher> special_;
};

// A prompt in pieces: scaffolding (control tokens allowed) and text of the user (never parsed for
// them).
struct PromptPiece {
  std::string text;
  bool is_scaffold = false;
};
// Encodes pieces as one text, control tokens only where they lie inside scaffold pieces.
Status encode_pieces(const Tokenizer& tokenizer, std::span<const PromptPiece> pieces,
                     bool add_special, std::vector<int32_t>* ids);

// Incremental detokenizer: bytes come out only as whole code points. Invalid bytes become U+FFFD
// (one for each maximal ill-formed part, as Unicode recommends). All pushes and finish() together
// give the bytes of decode() over the same ids. Confined to one thread.
class DetokenizeStream {
 public:
  // `at_start`: the ids begin a text, so the space that the encoder adds there is removed. A
  // completion goes on after its prompt: false.
  explicit DetokenizeStream(const Tokenizer* tokenizer, bool special = false, bool at_start = false)
      : tokenizer_(tokenizer), special_(special), at_start_(at_start) {}
  std::string push(int32_t id);  // text that became complete with this token (may be empty)
  std::string finish();          // what is left: an incomplete code point as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool special_;
  bool at_start_;
  std::string pending_;  // at most 3 bytes: the beginning of a code point
};

}  // namespace tandem
