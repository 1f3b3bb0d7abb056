// Words by the published patterns. Expectations were worked out from the patterns, not from this
// code.
#include "tokenizer/pretokenizer.h"

#include <catch2/catch.hpp>

namespace tandem {

namespace {

std::vector<std::string> words(const std::string& pre, const std::string& text) {
  const auto made = PreTokenizer::create(pre);
  REQUIRE(made.ok());
  std::vector<WordRange> ranges;
  REQUIRE((*made)->split(text, &ranges).ok());
  std::vector<std::string> out;
  size_t at = 0;
  for (const WordRange& r : ranges) {
    REQUIRE(r.begin == at);
    REQUIRE(r.end > r.begin);
    at = r.end;
    out.push_back(text.substr(r.begin, r.end - r.begin));
  }
  REQUIRE(at == text.size());
  return out;
}
using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("gpt-2 words") {
  CHECK(words("gpt-2", "I'm here, 1234!  Yes\n\n") ==
        Words{"I", "'m", " here", ",", " 1234", "!", " ", " Yes", "\n\n"});
  CHECK(words("gpt-2", "I'M") == Words{"I", "'", "M"});
  CHECK(words("gpt-2", "a\nb") == Words{"a", "\n", "b"});
  CHECK(words("phi-2", "naïve 東京") == Words{"naïve", " 東京"});
}

TEST_CASE("smollm splits digits one by one") {
  CHECK(words("smollm", "in 1995 a") == Words{"in", " ", "1", "9", "9", "5", " a"});
  CHECK(words("smollm", "²³") == Words{"²", "³"});
}

TEST_CASE("llama-bpe and qwen2 words") {
  CHECK(words("llama-bpe", "I'M 12345 x") == Words{"I", "'M", " ", "123", "45", " x"});
  CHECK(words("qwen2", "I'M 123 x") == Words{"I", "'M", " ", "1", "2", "3", " x"});
  CHECK(words("llama-bpe", "a  \n\n  b") == Words{"a", "  \n\n", " ", " b"});
  CHECK(words("llama-bpe", "(hello) end.\n") == Words{"(hello", ")", " end", ".\n"});
  CHECK(words("llama-bpe", "tail   ") == Words{"tail", "   "});
}

TEST_CASE("letters split by case") {
  CHECK(words("tekken", "HelloWorld fooBar ABC 12") ==
        Words{"Hello", "World", " foo", "Bar", " ABC", " ", "1", "2"});
  CHECK(words("gpt-4o", "Don'T 1234") == Words{"Don'T", " ", "123", "4"});
}

TEST_CASE("default and falcon take punctuation and digit triples apart") {
  CHECK(words("default", "a+b 12345...") == Words{"a", "+", "b", " ", "123", "45", "..."});
  CHECK(words("", "a+b") == words("default", "a+b"));
  CHECK(words("falcon", "x 1234`") == Words{"x", " ", "123", "4", "`"});
}

TEST_CASE("white space is Unicode's White_Space") {
  CHECK(words("gpt-2",
              "a\xC2\xA0\xC2\xA0"
              "b") == Words{"a", "\xC2\xA0", "\xC2\xA0", "b"});
  CHECK(words("gpt-2", "\xE1\xA0\x8E!") == Words{"\xE1\xA0\x8E!"});  // U+180E is no white space
}

TEST_CASE("a megabyte of blanks does not exhaust the pattern engine") {
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "default"}) {
    INFO(pre);
    CHECK(words(pre, std::string(1000000, ' ') + "a").size() == 2);
    CHECK(words(pre, std::string(1000000, 'A')).size() == 1);
    CHECK(words(pre, std::string(1000000, '\n')).size() == 1);
  }
}

}  // namespace tandem
