// C-38: vocabularies as a damaged or hostile file gives them. An error names the field; nothing
// crashes.
#include <limits>

#include "small_vocabulary.h"

namespace tandem {

namespace {

void refuses(Vocabulary v, const std::string& field,
             StatusCode code = StatusCode::kInvalidArgument) {
  const auto made = Tokenizer::create(std::move(v));
  INFO("expected an error about " << field);
  REQUIRE_FALSE(made.ok());
  INFO(made.status().message());
  CHECK(made.status().code() == code);
  CHECK(made.status().message().find(field) != std::string::npos);
}

template <typename Change>
Vocabulary spm_with(Change change) {
  Vocabulary v = spm_vocabulary();
  change(v);
  return v;
}
template <typename Change>
Vocabulary bpe_with(Change change) {
  Vocabulary v = bpe_vocabulary();
  change(v);
  return v;
}

}  // namespace

TEST_CASE("C-38: byte tokens that are none") {
  for (const char* text :
       {"<0x>", "<0xGG>", "<0x-1>", "<0x1>", "<0x100>", "<0X41>", "<0x4 >", "", "A"}) {
    INFO(text);
    refuses(spm_with([&](Vocabulary& v) { v.tokens[5] = text; }), "tokenizer.ggml.tokens[5]");
    // As a normal token it is a text like any other.
    const auto t = make(spm_with([&](Vocabulary& v) {
      v.tokens.push_back(text);
      v.types.push_back(kTokenNormal);
      v.scores.push_back(-1);
    }));
    CHECK(t->decode(encode(*t, "the <0x-1>"), false) == "the <0x-1>");
  }
}

TEST_CASE("C-38: lengths, sizes and ids") {
  refuses(spm_with([](Vocabulary& v) { v.tokens.back() = std::string(1 << 20, 'a'); }),
          "tokenizer.ggml.tokens[");
  refuses(bpe_with([](Vocabulary& v) { v.tokens.back() = "\xFF\xFE"; }), "not UTF-8");
  refuses(spm_with([](Vocabulary& v) { v.tokens.back() = "a\xC3"; }), "not UTF-8");
  refuses(spm_with([](Vocabulary& v) { v.scores.pop_back(); }), "tokenizer.ggml.scores");
  refuses(spm_with([](Vocabulary& v) { v.scores.clear(); }), "tokenizer.ggml.scores");
  refuses(spm_with([](Vocabulary& v) { v.scores[7] = std::numeric_limits<float>::quiet_NaN(); }),
          "scores[7]");
  refuses(spm_with([](Vocabulary& v) { v.types.pop_back(); }), "tokenizer.ggml.token_type");
  refuses(spm_with([](Vocabulary& v) { v.tokens.pop_back(); }), "tokenizer.ggml.token_type");
  refuses(spm_with([](Vocabulary& v) { v.types[4] = 7; }), "token_type[4]");
  refuses(spm_with([](Vocabulary& v) { v.types[4] = -1; }), "token_type[4]");
  refuses(bpe_with([](Vocabulary& v) { v.bos = static_cast<int32_t>(v.tokens.size()); }),
          "bos_token_id");
  refuses(bpe_with([](Vocabulary& v) { v.eos = -2; }), "eos_token_id");
  refuses(bpe_with([](Vocabulary& v) { v.unknown = INT32_MAX; }), "unknown_token_id");
  refuses(bpe_with([](Vocabulary& v) { v.extra_end_tokens = {INT32_MIN}; }), "eom_token_id");
  refuses(Vocabulary{}, "tokenizer.ggml.tokens");
}

TEST_CASE("C-38: merges") {
  refuses(bpe_with([](Vocabulary& v) { v.merges.push_back("he zz"); }), "merges[7]");
  refuses(bpe_with([](Vocabulary& v) { v.merges.push_back("h h"); }), "result");
  for (const char* merge : {"", " ", "a", "a ", " a"}) {
    INFO('"' << merge << '"');
    refuses(bpe_with([&](Vocabulary& v) { v.merges.push_back(merge); }),
            "tokenizer.ggml.merges[7]");
  }
  // A merge cannot make a control token out of plain text.
  const auto t = make(bpe_with([](Vocabulary& v) {
    v.tokens.push_back("xy");
    v.types.push_back(kTokenControl);
    v.merges.push_back("x y");
  }));
  CHECK(t->decode(encode(*t, "xy"), false) == "xy");
}

TEST_CASE("kinds that are not served are refused by name") {
  refuses(bpe_with([](Vocabulary& v) { v.pre = "klingon"; }), "\"klingon\"",
          StatusCode::kUnimplemented);
  refuses(bpe_with([](Vocabulary& v) { v.pre = "klingon"; }), "smollm", StatusCode::kUnimplemented);
  refuses(bpe_with([](Vocabulary& v) { v.pre = "gpt-2 phi-2"; }), "not served",
          StatusCode::kUnimplemented);
  refuses(bpe_with([](Vocabulary& v) { v.model = "bert"; }), "\"bert\"",
          StatusCode::kUnimplemented);
}

TEST_CASE("a byte that the vocabulary cannot spell is the unknown token, or left out") {
  const auto drop_q = [](Vocabulary& v) { v.tokens[5 + 'q'] = "replaced"; };
  const auto t = make(bpe_with(drop_q));
  CHECK(t->decode(encode(*t, "hello qe"), false) == "hello e");
  const auto with_unknown = make(bpe_with([&](Vocabulary& v) {
    drop_q(v);
    v.unknown = static_cast<int32_t>(v.tokens.size());
    v.tokens.push_back("<unk>");
    v.types.push_back(kTokenUnknown);
  }));
  CHECK(encode(*with_unknown, "hello q").back() == with_unknown->vocabulary().unknown);
}

}  // namespace tandem
