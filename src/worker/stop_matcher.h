// Finds stop strings in a text that comes in pieces, and says how much of it can no longer become one. The
// first stop string to be complete ends the text where it begins; of several complete at the same byte, the
// one that begins first. How the text was cut into pieces makes no difference.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class StopMatcher {
 public:
  // Empty strings are left out.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Takes the next piece. True: a stop string is complete; nothing may follow.
  bool push(std::string_view piece);
  // Bytes of the whole text that may be shown: up to the stop string, or to what may yet become one.
  size_t n_safe() const { return n_safe_; }

 private:
  // One stop string as an automaton (Knuth, Morris, Pratt): `matched` bytes of it are the end of the text.
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // by matched bytes: next shorter prefix that is also a suffix
    size_t matched = 0;
    void step(char c);
  };
  std::vector<Pattern> patterns_;
  size_t n_seen_ = 0;
  size_t n_safe_ = 0;
};

}  // namespace tandem
