#include "worker/stop_matcher.h"

#include <algorithm>

namespace tandem {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern p;
    p.text = stop;
    p.fallback.assign(stop.size() + 1, 0);
    for (size_t i = 1, k = 0; i < stop.size(); ++i) {
      while (k > 0 && stop[i] != stop[k]) k = p.fallback[k];
      if (stop[i] == stop[k]) ++k;
      p.fallback[i + 1] = k;
    }
    patterns_.push_back(std::move(p));
  }
}

void StopMatcher::Pattern::step(char c) {
  while (matched > 0 && text[matched] != c) matched = fallback[matched];
  if (text[matched] == c) ++matched;
}

bool StopMatcher::push(std::string_view piece) {
  if (patterns_.empty()) {
    n_safe_ = n_seen_ += piece.size();
    return false;
  }
  size_t longest = 0;
  for (const Pattern& p : patterns_) longest = std::max(longest, p.matched);
  for (char c : piece) {
    ++n_seen_;
    longest = 0;
    size_t complete = 0;
    for (Pattern& p : patterns_) {
      p.step(c);
      longest = std::max(longest, p.matched);
      if (p.matched == p.text.size()) complete = std::max(complete, p.matched);
    }
    if (complete > 0) {
      n_safe_ = n_seen_ - complete;
      return true;
    }
  }
  n_safe_ = n_seen_ - longest;
  return false;
}

}  // namespace tandem
