// Vocabularies small enough to reason about, for tests without a model file.
#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

// 0 <bos>, 1 <eos>, 2 <|im_start|>, 3 <|im_end|>, 4 user-defined "==", then the 256 bytes, then
// merged words.
inline Vocabulary bpe_vocabulary() {
  Vocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  v.tokens = {"<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "=="};
  v.types = {kTokenControl, kTokenControl, kTokenControl, kTokenControl, kTokenUserDefined};
  for (int b = 0; b < 256; ++b) v.tokens.push_back(spelling_of_byte(static_cast<uint8_t>(b)));
  for (const char* merge : {"h e", "l l", "he ll", "hell o", "Ġ hello", "a a", "aa aa"}) {
    v.merges.push_back(merge);
    std::string merged = merge;
    merged.erase(merged.find(' ', 1), 1);
    v.tokens.push_back(merged);
  }
  v.types.resize(v.tokens.size(), kTokenNormal);
  v.bos = 0;
  v.eos = 1;
  v.add_bos = true;
  return v;
}

// 0 <unk>, 1 <s>, 2 </s>, then 256 byte tokens, then pieces with scores.
inline Vocabulary spm_vocabulary() {
  Vocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>"};
  v.types = {kTokenUnknown, kTokenControl, kTokenControl};
  v.scores = {0, 0, 0};
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(b));
    v.tokens.push_back(text);
    v.types.push_back(kTokenByte);
    v.scores.push_back(0);
  }
  float score = 0;
  for (const char* piece : {"he", "ll", "▁t", "hell", "hello", "▁hello", "the", "▁the", "h", "e",
                            "l", "o", "t", "▁", "a", "aa", "aaa", "é"}) {
    v.tokens.push_back(piece);
    v.types.push_back(kTokenNormal);
    v.scores.push_back(score -= 1);
  }
  v.bos = 1;
  v.eos = 2;
  v.unknown = 0;
  v.add_bos = true;
  v.add_space_prefix = true;
  return v;
}

inline std::unique_ptr<Tokenizer> make(Vocabulary v) {
  auto made = Tokenizer::create(std::move(v));
  if (!made.ok()) FAIL(made.status().message());
  return std::move(made).value();
}

inline int32_t id_of(const Tokenizer& t, const std::string& spelling) {
  const auto& tokens = t.vocabulary().tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == spelling) return static_cast<int32_t>(i);
  }
  FAIL("no token " << spelling);
  return -1;
}

inline std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text,
                                   bool parse_special = false, bool add_special = false) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.encode(text, {add_special, parse_special}, &ids);
  INFO(status.message());
  REQUIRE(status.ok());
  return ids;
}

}  // namespace tandem
