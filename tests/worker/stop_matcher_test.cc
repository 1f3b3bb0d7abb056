#include "worker/stop_matcher.h"

#include <catch2/catch.hpp>
#include <random>

namespace tandem {
namespace {

// The rule spelled out: the first byte at which some stop string is complete, and where the longest begins.
size_t cut_of(const std::string& text, const std::vector<std::string>& stops, bool* found) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t begin = std::string::npos;
    for (const std::string& s : stops) {
      if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0) begin = std::min(begin, end - s.size());
    }
    if (begin != std::string::npos) return *found = true, begin;
  }
  return *found = false, text.size();
}

}  // namespace

TEST_CASE("stop strings: what may be shown at each moment (C-06)") {
  StopMatcher m({"FGHIJ"});
  CHECK_FALSE(m.push("ABCDE"));
  CHECK(m.n_safe() == 5);
  CHECK_FALSE(m.push("FG"));
  CHECK(m.n_safe() == 5);
  CHECK_FALSE(m.push("HX"));  // not a stop string after all
  CHECK(m.n_safe() == 9);
  CHECK_FALSE(m.push("FGH"));
  CHECK(m.push("IJK"));
  CHECK(m.n_safe() == 9);

  StopMatcher first({"AB"});
  CHECK(first.push("AB"));
  CHECK(first.n_safe() == 0);

  StopMatcher prefix({"stop it", "stop"});  // one is a prefix of the other: the shorter is complete first
  CHECK_FALSE(prefix.push("please sto"));
  CHECK(prefix.push("p it"));
  CHECK(prefix.n_safe() == 7);

  StopMatcher none({"", ""});
  CHECK_FALSE(none.push("anything"));
  CHECK(none.n_safe() == 8);
}

TEST_CASE("a repeated beginning is not lost") {
  StopMatcher m({"aab"});
  CHECK_FALSE(m.push("aaa"));
  CHECK(m.n_safe() == 1);
  CHECK(m.push("b"));
  CHECK(m.n_safe() == 1);
}

TEST_CASE("any text in any pieces is cut where the rule says, and nothing of a stop string is ever safe") {
  std::mt19937 rng(11);
  int n_found = 0;
  for (int round = 0; round < 30000; ++round) {
    std::vector<std::string> stops(1 + rng() % 3);
    for (std::string& s : stops) {
      s.resize(1 + rng() % 5);
      for (char& c : s) c = static_cast<char>('a' + rng() % 2);
    }
    std::string text(rng() % 20, ' ');
    for (char& c : text) c = static_cast<char>('a' + rng() % 3 % 2 + rng() % 40 / 39);
    bool expected = false;
    size_t cut = cut_of(text, stops, &expected);
    StopMatcher m(stops);
    bool found = false;
    size_t safe_before = 0;
    for (size_t at = 0; at < text.size() && !found;) {
      size_t n = std::min<size_t>(1 + rng() % 4, text.size() - at);
      found = m.push(text.substr(at, n));
      at += n;
      REQUIRE(m.n_safe() >= safe_before);  // what was shown is never taken back
      REQUIRE(m.n_safe() <= cut);
      safe_before = m.n_safe();
    }
    REQUIRE(found == expected);
    if (found) REQUIRE(m.n_safe() == cut);
    n_found += found;
  }
  CHECK(n_found > 5000);
}

}  // namespace tandem
