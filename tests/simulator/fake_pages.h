// Pages as hashes of their history: see simulation.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"

namespace tandem {

constexpr uint64_t kEmptyHistory = 0x9E3779B97F4A7C15ull;

inline uint64_t add_token(uint64_t history, int32_t token) {
  uint64_t x = (history ^ static_cast<uint32_t>(token)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 29);
}
inline int32_t token_after(uint64_t history) { return static_cast<int32_t>((history >> 33) % 50'000) + 1; }

class FakePages {
 public:
  FakePages(int n_pages, int page_size) : page_size_(page_size), pages_(static_cast<size_t>(n_pages)) {}
  // Stores an item's tokens; returns the history up to the last.
  uint64_t run(const StepItem& item, std::span<const int32_t> tokens);
  void copy(const PageCopy& c) { pages_[static_cast<size_t>(c.to)] = pages_[static_cast<size_t>(c.from)]; }
  // Whether the pages of positions [0, n) follow from each other.
  bool is_chain(const PageId* table, int n_tokens) const;
  void spoil(PageId page) { pages_[static_cast<size_t>(page)].end ^= 1; }

 private:
  struct Page {
    uint64_t start = 0, end = 0;
    int n_filled = 0;
  };
  int page_size_;
  std::vector<Page> pages_;
};

}  // namespace tandem
