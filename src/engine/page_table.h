// The pages of one sequence, a table per KV group: entry i holds positions [i * page_size, (i + 1) * page_size).
// Pages go back to the pool when the table is destroyed or cleared. Confined to the engine thread.
#pragma once

#include <vector>

#include "engine/page_pool.h"
#include "model/backend.h"

namespace tandem {

class PageTable {
 public:
  // The pool outlives the table. `windows`: per group, 0 for full attention; outlives it too.
  PageTable(PagePool* pool, const std::vector<int>* windows, int page_size);
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;
  ~PageTable() { clear(); }

  // Pages for positions [0, n_tokens), all or none. False: the pool has too few free ones.
  bool grow(int n_tokens);
  // Gives back the pages that no query at `next_pos` or later can see any more; their entries become -1.
  void leave_windows(int next_pos);
  // Becomes a fork of `from` (this table must be empty): full pages of [0, n_tokens) are shared, the last,
  // partial one is a page of its own, filled by the copies appended. False: no free page for it.
  bool fork(const PageTable& from, int n_tokens, std::vector<PageCopy>* copies);
  // Becomes a sequence that has computed blocks [0, n) (this table must be empty), whose pages it shares: per
  // group n entries, -1 for those that left the window.
  void adopt(const std::vector<std::vector<PageId>>& pages);
  // Shares `page`, which has the same content, in place of entry i of the group, which it gives back.
  void replace(int group, int i, PageId page);
  // Moves the pages of [0, n_tokens) to the swap tier and gives back all others; pages whose copy is there
  // already are only dropped. All or nothing; false: the tier has too few free pages. The copies appended must be
  // carried out in order, before any page changes again.
  bool swap_out(int n_tokens, std::vector<PageCopy>* copies);
  // Brings pages back, the last ones first; false: the device has too few free pages, and the first ones stay
  // in the swap tier.
  bool swap_in(int n_tokens, std::vector<PageCopy>* copies);
  // Moves the first full page of [0, n_tokens) that the device has, of the group, to the swap tier. False: there
  // is none, or no room.
  bool spill(int group, int n_tokens, std::vector<PageCopy>* copies);
  // Device pages that swap_in() must find free; those whose copy somebody holds are shared, not allocated.
  int n_to_swap_in(int group) const;
  // As grow(), for a sequence whose K/V are copied, not computed: blocks that no query at `n_tokens` or later can
  // see get no page.
  bool grow_visible(int n_tokens);
  void take(PageTable* from);  // all its pages; this table must be empty
  void clear();  // the last page first: of a prefix kept for others, the tail is the oldest

  const PageId* pages(int group) const { return tables_[group].pages.data(); }
  int n_entries(int group) const { return static_cast<int>(tables_[group].pages.size()); }
  int n_held(int group) const;       // entries that are not -1
  int n_exclusive(int group) const;  // pages that clear() would free

 private:
  struct Table {
    std::vector<PageId> pages;
    int n_left = 0;  // leading entries that left the window
  };
  void move_page(int group, int i, PageId to, bool is_full, std::vector<PageCopy>* copies);

  PagePool* pool_;
  const std::vector<int>* windows_;
  int page_size_;
  std::vector<Table> tables_;
};

// The first page that a query at `next_pos` or later can see.
inline int first_visible_page(int window, int page_size, int next_pos) {
  int first_key = window == 0 ? 0 : next_pos - window + 1;  // keys with pos - window < key <= pos
  return first_key > 0 ? first_key / page_size : 0;
}

// Pages of one group that a sequence holds at most while `n_tokens` positions are filled in chunks of at most
// `chunk` tokens.
int peak_pages(int window, int page_size, int n_tokens, int chunk);

}  // namespace tandem
