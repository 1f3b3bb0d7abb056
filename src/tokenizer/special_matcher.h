// Finds special tokens (control, unknown, user-defined) in a text before it is tokenized. The
// longest token wins wherever it stands; among equals the leftmost. Control and unknown tokens
// count only inside ranges that the caller trusts. Immutable; thread-safe; time linear in the text.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace tandem {

class SpecialMatcher {
 public:
  explicit SpecialMatcher(const Vocabulary& vocabulary);
  // Cuts `text` into special tokens and the text between them. trusted: ascending, disjoint.
  void split(std::string_view text, std::span<const TextRange> trusted,
             std::vector<TextFragment>* fragments) const;

 private:
  struct Node {  // a trie; children are a list of siblings
    uint8_t byte = 0;
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t id = -1;
  };
  struct Candidate {
    size_t begin;
    size_t longest;
  };
  void add(std::string_view token, int32_t id);
  int32_t child(int32_t node, uint8_t byte) const;
  bool may_start(std::string_view text, size_t i) const;
  bool allowed(int32_t id, size_t begin, size_t end, std::span<const TextRange> trusted) const;
  std::vector<Candidate> find_candidates(std::string_view text, std::span<const TextRange> trusted,
                                         std::vector<bool>* lengths) const;
  int32_t match(std::string_view text, size_t begin, size_t length,
                std::span<const TextRange> trusted) const;
  std::vector<TextFragment> claim(std::string_view text, std::span<const TextRange> trusted) const;

  std::vector<Node> nodes_;
  std::vector<bool> needs_trust_;   // by id: control and unknown tokens
  std::vector<bool> strips_right_;  // by id
  size_t longest_ = 0;
  std::bitset<65536> starts_;  // first two bytes of a token
  std::bitset<256> single_;    // tokens of one byte
};

}  // namespace tandem
