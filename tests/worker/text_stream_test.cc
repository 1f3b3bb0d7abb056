#include "worker/text_stream.h"

#include <catch2/catch.hpp>
#include <random>

#include "tests/tokenizer/small_vocabulary.h"
#include "tokenizer/utf8.h"

namespace tandem {
namespace {

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> t = make(bpe_vocabulary());
  return *t;
}
std::vector<int32_t> byte_tokens(const std::string& text) {
  std::vector<int32_t> ids;
  for (char c : text) ids.push_back(5 + static_cast<unsigned char>(c));
  return ids;
}

struct Shown {
  std::string text;
  std::vector<std::string> pieces;         // after each token
  std::vector<uint32_t> n_released;        // after each token
  size_t n_tokens = 0;                     // until it stopped
  bool is_stopped = false;
};
Shown run(TextStream& stream, const std::vector<int32_t>& tokens) {
  Shown out;
  for (int32_t token : tokens) {
    out.is_stopped = stream.push(token);
    out.pieces.push_back(stream.take_text());
    out.text += out.pieces.back();
    out.n_released.push_back(stream.n_released_tokens());
    ++out.n_tokens;
    if (out.is_stopped) return out;
  }
  out.is_stopped = stream.finish();
  out.text += stream.take_text();
  out.n_released.push_back(stream.n_released_tokens());
  return out;
}
Shown run(const std::vector<std::string>& stops, const std::vector<int32_t>& tokens) {
  TextStream stream(&tokenizer(), stops);
  return run(stream, tokens);
}

}  // namespace

TEST_CASE("a stop string over several tokens never shows, wherever it begins (C-06)") {
  Shown s = run({"FGH"}, byte_tokens("ABCFGHIJ"));
  CHECK((s.is_stopped && s.text == "ABC" && s.n_tokens == 6));
  CHECK(s.pieces == std::vector<std::string>{"A", "B", "C", "", "", ""});
  CHECK(s.n_released.back() == 3);

  s = run({"AB"}, byte_tokens("ABC"));  // at the very first position
  CHECK((s.is_stopped && s.text.empty() && s.n_tokens == 2 && s.n_released.back() == 0));

  s = run({"FGX"}, byte_tokens("FGH"));  // held, then shown
  CHECK(s.pieces == std::vector<std::string>{"", "", "FGH"});
  CHECK((!s.is_stopped && s.n_released == std::vector<uint32_t>{0, 0, 3, 3}));

  s = run({"FGX"}, byte_tokens("AFG"));  // the text ends while held
  CHECK((!s.is_stopped && s.text == "AFG" && s.n_released.back() == 3));

  s = run({"é🙂"}, byte_tokens("xé🙂y"));
  CHECK((s.is_stopped && s.text == "x" && s.n_tokens == 7));

  s = run({"stop it", "stop"}, byte_tokens("a stop it"));
  CHECK((s.is_stopped && s.text == "a "));
}

TEST_CASE("only whole characters come out; what is no character becomes U+FFFD at the end") {
  Shown s = run({}, byte_tokens("a🙂b"));
  CHECK(s.pieces == std::vector<std::string>{"a", "", "", "", "🙂", "b"});
  CHECK(s.n_released == std::vector<uint32_t>{1, 1, 1, 1, 5, 6, 6});
  s = run({}, byte_tokens(std::string("a\xf0\x9f", 3)));
  CHECK(s.text == "a\xEF\xBF\xBD");
  CHECK(s.n_released.back() == 3);
}

TEST_CASE("a control token has no text and counts with what follows") {
  std::vector<int32_t> tokens = byte_tokens("a");
  tokens.push_back(2);  // <|im_start|>
  tokens.push_back(byte_tokens("b")[0]);
  Shown s = run({}, tokens);
  CHECK(s.text == "ab");
  CHECK(s.n_released == std::vector<uint32_t>{1, 1, 3, 3});
}

TEST_CASE("cut anywhere and replayed, a text goes on where it was: nothing twice, nothing missing") {
  std::mt19937 rng(5);
  const std::vector<std::string> alphabet = {"a", "b", "ab", "🙂", "é", "x", "\xf0\x9f", "\xff"};
  const std::vector<std::string> stop_sets[] = {{}, {"abx"}, {"🙂é", "bb"}, {"\xEF\xBF\xBD" "a"}, {"xa", "xab"}};
  int n_stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string raw;
    for (size_t i = rng() % 25; i > 0; --i) raw += alphabet[rng() % alphabet.size()];
    std::vector<int32_t> tokens = byte_tokens(raw);
    const auto& stops = stop_sets[rng() % 5];
    Shown whole = run(stops, tokens);
    n_stopped += whole.is_stopped;
    REQUIRE(utf8_valid_prefix(whole.text) == whole.text.size());
    tokens.resize(whole.n_tokens);
    for (size_t cut = 0; cut <= tokens.size(); ++cut) {
      TextStream first(&tokenizer(), stops);
      std::string text;
      size_t n = 0;
      for (; n < cut; ++n) {
        first.push(tokens[n]);
        text += first.take_text();
      }
      TextStream second(&tokenizer(), stops, text.size());
      bool is_stopped = false;
      for (n = 0; n < cut; ++n) is_stopped = second.push(tokens[n]);
      if (is_stopped) {
        text += second.take_text();
      } else {
        Shown rest = run(second, {tokens.begin() + static_cast<long>(cut), tokens.end()});
        text += rest.text;
        is_stopped = rest.is_stopped;
      }
      REQUIRE(text == whole.text);
      REQUIRE(is_stopped == whole.is_stopped);
      REQUIRE(second.n_released_tokens() == whole.n_released.back());
    }
  }
  CHECK(n_stopped > 300);
}

}  // namespace tandem
