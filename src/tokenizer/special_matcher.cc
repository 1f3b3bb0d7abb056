// DESIGN: the reference cuts the text once per special token, longest first. That is tokens x bytes
// (gemma3 has 6,400 of them), so one pass over a trie finds where any token could begin, and then
// only those places are claimed, by descending length. A claimed piece is never shorter than a
// later one, so looking at a piece's two end bytes tells whether it overlaps one.
#include "tokenizer/special_matcher.h"

#include <algorithm>

#include "tokenizer/end_tokens.h"

namespace tandem {

namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
unsigned pair_of(char a, char b) {
  return static_cast<uint8_t>(a) * 256u + static_cast<uint8_t>(b);
}

}  // namespace

SpecialMatcher::SpecialMatcher(const Vocabulary& vocabulary)
    : nodes_(1), needs_trust_(vocabulary.tokens.size()), strips_right_(vocabulary.tokens.size()) {
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const int32_t type = vocabulary.types.empty() ? kTokenNormal : vocabulary.types[i];
    const bool is_user_defined = type == kTokenUserDefined;
    needs_trust_[i] = type == kTokenControl || type == kTokenUnknown ||
                      (is_user_defined && is_end_text(vocabulary.tokens[i]));
    if (needs_trust_[i] || is_user_defined) add(vocabulary.tokens[i], static_cast<int32_t>(i));
  }
  for (int32_t id : vocabulary.strip_right_tokens) strips_right_[static_cast<size_t>(id)] = true;
}

int32_t SpecialMatcher::child(int32_t node, uint8_t byte) const {
  int32_t c = nodes_[static_cast<size_t>(node)].first_child;
  while (c >= 0 && nodes_[static_cast<size_t>(c)].byte != byte)
    c = nodes_[static_cast<size_t>(c)].next_sibling;
  return c;
}

void SpecialMatcher::add(std::string_view token, int32_t id) {
  if (token.empty()) return;
  int32_t node = 0;
  for (char c : token) {
    int32_t next = child(node, static_cast<uint8_t>(c));
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      Node& parent = nodes_[static_cast<size_t>(node)];
      const Node fresh{static_cast<uint8_t>(c), -1, parent.first_child, -1};
      parent.first_child = next;
      nodes_.push_back(fresh);
    }
    node = next;
  }
  nodes_[static_cast<size_t>(node)].id = id;
  longest_ = std::max(longest_, token.size());
  if (token.size() == 1) {
    single_.set(static_cast<uint8_t>(token[0]));
  } else {
    starts_.set(pair_of(token[0], token[1]));
  }
}

bool SpecialMatcher::may_start(std::string_view text, size_t i) const {
  if (single_[static_cast<uint8_t>(text[i])]) return true;
  return i + 1 < text.size() && starts_[pair_of(text[i], text[i + 1])];
}

bool SpecialMatcher::allowed(int32_t id, size_t begin, size_t end,
                             std::span<const TextRange> trusted) const {
  if (!needs_trust_[static_cast<size_t>(id)]) return true;
  const auto after = std::upper_bound(trusted.begin(), trusted.end(), begin,
                                      [](size_t b, const TextRange& r) { return b < r.begin; });
  return after != trusted.begin() && std::prev(after)->end >= end;
}

std::vector<SpecialMatcher::Candidate> SpecialMatcher::find_candidates(
    std::string_view text, std::span<const TextRange> trusted, std::vector<bool>* lengths) const {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!may_start(text, i)) continue;
    size_t longest = 0;
    int32_t node = 0;
    for (size_t j = i; j < text.size(); ++j) {
      node = child(node, static_cast<uint8_t>(text[j]));
      if (node < 0) break;
      const int32_t id = nodes_[static_cast<size_t>(node)].id;
      if (id < 0 || !allowed(id, i, j + 1, trusted)) continue;
      longest = j + 1 - i;
      (*lengths)[longest] = true;
    }
    if (longest > 0) candidates.push_back({i, longest});
  }
  return candidates;
}

// Id of the token that is exactly text[begin, begin + length), or -1.
int32_t SpecialMatcher::match(std::string_view text, size_t begin, size_t length,
                              std::span<const TextRange> trusted) const {
  int32_t node = 0;
  for (size_t j = begin; j < begin + length && node >= 0; ++j)
    node = child(node, static_cast<uint8_t>(text[j]));
  if (node < 0) return -1;
  const int32_t id = nodes_[static_cast<size_t>(node)].id;
  return id >= 0 && allowed(id, begin, begin + length, trusted) ? id : -1;
}

std::vector<TextFragment> SpecialMatcher::claim(std::string_view text,
                                                std::span<const TextRange> trusted) const {
  std::vector<bool> lengths(longest_ + 1);
  std::vector<Candidate> candidates = find_candidates(text, trusted, &lengths);
  std::vector<TextFragment> found;
  if (candidates.empty()) return found;
  std::vector<bool> claimed(text.size());
  for (size_t length = longest_; length > 0; --length) {
    if (!lengths[length]) continue;
    size_t n_left = 0;
    for (const Candidate& c : candidates) {
      if (claimed[c.begin]) continue;  // gone for good
      const int32_t id = c.longest < length || claimed[c.begin + length - 1]
                             ? -1
                             : match(text, c.begin, length, trusted);
      if (id < 0) {
        candidates[n_left++] = c;
        continue;
      }
      std::fill_n(claimed.begin() + static_cast<std::ptrdiff_t>(c.begin), length, true);
      found.push_back({c.begin, c.begin + length, id});
    }
    candidates.resize(n_left);
  }
  std::sort(found.begin(), found.end(),
            [](const TextFragment& a, const TextFragment& b) { return a.begin < b.begin; });
  return found;
}

void SpecialMatcher::split(std::string_view text, std::span<const TextRange> trusted,
                           std::vector<TextFragment>* fragments) const {
  const std::vector<TextFragment> found = claim(text, trusted);
  size_t at = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].begin > at) fragments->push_back({at, found[i].begin, -1});
    fragments->push_back(found[i]);
    at = found[i].end;
    if (!strips_right_[static_cast<size_t>(found[i].id)]) continue;
    const size_t limit = i + 1 < found.size() ? found[i + 1].begin : text.size();
    while (at < limit && is_blank(text[at])) ++at;
  }
  if (at < text.size()) fragments->push_back({at, text.size(), -1});
}

}  // namespace tandem
