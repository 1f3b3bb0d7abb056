#include "fake_pages.h"

namespace tandem {

uint64_t FakePages::run(const StepItem& item, std::span<const int32_t> tokens) {
  const PageId* table = item.page_tables[0];
  uint64_t history = 0;
  for (int t = 0; t < item.n_tokens; ++t) {
    int pos = item.first_pos + t, slot = pos % page_size_;
    Page& page = pages_[static_cast<size_t>(table[pos / page_size_])];
    if (slot == 0) {
      page.start = pos == 0 ? kEmptyHistory : pages_[static_cast<size_t>(table[pos / page_size_ - 1])].end;
      page.end = page.start;
      page.n_filled = 0;
    }
    // A page that holds another number of tokens is somebody else's: its history is no good.
    history = add_token(page.n_filled == slot ? page.end : 0, tokens[static_cast<size_t>(item.first_token + t)]);
    page.end = history;
    page.n_filled = slot + 1;
  }
  return history;
}

bool FakePages::is_chain(const PageId* table, int n_tokens) const {
  uint64_t history = kEmptyHistory;
  for (int i = 0; i * page_size_ < n_tokens; ++i) {
    const Page& page = pages_[static_cast<size_t>(table[i])];
    if (page.start != history) return false;
    history = page.end;
  }
  return true;
}

}  // namespace tandem
