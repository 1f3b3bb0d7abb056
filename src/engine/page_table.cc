#include "engine/page_table.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {
int pages_for(int n_tokens, int page_size) { return (n_tokens + page_size - 1) / page_size; }
}  // namespace

PageTable::PageTable(PagePool* pool, const std::vector<int>* windows, int page_size)
    : pool_(pool), windows_(windows), page_size_(page_size), tables_(windows->size()) {}

bool PageTable::grow(int n_tokens) {
  int n_needed = pages_for(n_tokens, page_size_);
  for (size_t g = 0; g < tables_.size(); ++g) {
    int n_new = n_needed - static_cast<int>(tables_[g].pages.size());
    if (n_new > pool_->n_free(static_cast<int>(g))) return false;
  }
  for (size_t g = 0; g < tables_.size(); ++g) {
    while (static_cast<int>(tables_[g].pages.size()) < n_needed)
      tables_[g].pages.push_back(pool_->allocate(static_cast<int>(g)));
  }
  return true;
}

bool PageTable::grow_visible(int n_tokens) {
  leave_windows(n_tokens);
  const int n_needed = pages_for(n_tokens, page_size_);
  auto first_page = [&](size_t g) {
    return std::max(static_cast<int>(tables_[g].pages.size()),
                    std::min(n_needed, first_visible_page((*windows_)[g], page_size_, n_tokens)));
  };
  for (size_t g = 0; g < tables_.size(); ++g) {
    if (n_needed - first_page(g) > pool_->n_free(static_cast<int>(g))) return false;
  }
  for (size_t g = 0; g < tables_.size(); ++g) {
    Table& table = tables_[g];
    for (const int first = first_page(g); static_cast<int>(table.pages.size()) < first; ++table.n_left)
      table.pages.push_back(-1);
    while (static_cast<int>(table.pages.size()) < n_needed)
      table.pages.push_back(pool_->allocate(static_cast<int>(g)));
  }
  return true;
}

void PageTable::leave_windows(int next_pos) {
  for (size_t g = 0; g < tables_.size(); ++g) {
    Table& table = tables_[g];
    int n_gone = std::min(first_visible_page((*windows_)[g], page_size_, next_pos),
                          static_cast<int>(table.pages.size()));
    for (; table.n_left < n_gone; ++table.n_left) {
      pool_->release(static_cast<int>(g), table.pages[table.n_left]);
      table.pages[table.n_left] = -1;
    }
  }
}

bool PageTable::fork(const PageTable& from, int n_tokens, std::vector<PageCopy>* copies) {
  int n_full = n_tokens / page_size_;
  bool has_partial = n_tokens % page_size_ != 0;
  for (int g = 0; g < pool_->n_groups() && has_partial; ++g) {
    if (pool_->n_free(g) == 0) return false;
  }
  for (size_t g = 0; g < tables_.size(); ++g) {
    int group = static_cast<int>(g);
    const Table& source = from.tables_[g];
    Table& table = tables_[g];
    CHECK(table.pages.empty());
    table.n_left = std::min(source.n_left, n_full);
    for (int i = 0; i < n_full; ++i) {
      if (i >= source.n_left) pool_->share(group, source.pages[i]);
      table.pages.push_back(source.pages[i]);
    }
    if (has_partial) {
      table.pages.push_back(pool_->allocate(group));
      copies->push_back({group, source.pages[n_full], table.pages.back()});
    }
  }
  return true;
}

void PageTable::adopt(const std::vector<std::vector<PageId>>& pages) {
  for (size_t g = 0; g < tables_.size(); ++g) {
    Table& table = tables_[g];
    CHECK(table.pages.empty());
    table.pages = pages[g];
    for (PageId page : table.pages) {
      if (page < 0) ++table.n_left;
      else pool_->share(static_cast<int>(g), page);
    }
  }
}

void PageTable::replace(int group, int i, PageId page) {
  PageId& entry = tables_[group].pages[i];
  CHECK(entry >= 0);
  pool_->share(group, page);
  pool_->release(group, entry);
  entry = page;
}

// Entry i becomes `to`, which is held for it. Full pages never change again, so the two stay linked.
void PageTable::move_page(int group, int i, PageId to, bool is_full, std::vector<PageCopy>* copies) {
  PageId& entry = tables_[group].pages[i];
  copies->push_back({group, entry, to});
  if (is_full) pool_->link(group, entry, to);
  pool_->release(group, entry);
  entry = to;
}

bool PageTable::swap_out(int n_tokens, std::vector<PageCopy>* copies) {
  int n_entries_kept = pages_for(n_tokens, page_size_), n_full = n_tokens / page_size_;
  auto is_to_copy = [&](int g, PageId page) {
    return page >= 0 && !pool_->is_swapped(g, page) && pool_->copy_of(g, page) < 0;
  };
  for (int g = 0; g < pool_->n_groups(); ++g) {
    const std::vector<PageId>& pages = tables_[g].pages;
    auto end = pages.begin() + std::min<int>(n_entries_kept, n_entries(g));
    auto n = std::count_if(pages.begin(), end, [&](PageId page) { return is_to_copy(g, page); });
    if (n > pool_->n_swap_free(g)) return false;
  }
  for (int g = 0; g < pool_->n_groups(); ++g) {
    std::vector<PageId>& pages = tables_[g].pages;
    for (; static_cast<int>(pages.size()) > n_entries_kept; pages.pop_back()) {
      if (pages.back() >= 0) pool_->release(g, pages.back());
    }
    tables_[g].n_left = std::min(tables_[g].n_left, n_entries(g));
    for (int i = n_entries(g) - 1; i >= 0; --i) {  // the last first, as clear() does
      PageId page = pages[i];
      if (is_to_copy(g, page)) {
        move_page(g, i, pool_->allocate_swapped(g), i < n_full, copies);
      } else if (page >= 0 && !pool_->is_swapped(g, page)) {
        pages[i] = pool_->copy_of(g, page);
        pool_->share(g, pages[i]);
        pool_->release(g, page);
      }
    }
  }
  return true;
}

bool PageTable::swap_in(int n_tokens, std::vector<PageCopy>* copies) {
  int n_full = n_tokens / page_size_;
  bool is_whole = true;
  for (int g = 0; g < pool_->n_groups(); ++g) {
    std::vector<PageId>& pages = tables_[g].pages;
    for (PageId& page : pages) {  // first those that are there: allocating might evict them
      if (page < 0 || !pool_->is_swapped(g, page)) continue;
      PageId copy = pool_->copy_of(g, page);
      if (copy < 0) continue;
      pool_->share(g, copy);
      pool_->release(g, page);
      page = copy;
    }
    for (int i = n_entries(g) - 1; i >= 0; --i) {
      if (pages[i] < 0 || !pool_->is_swapped(g, pages[i])) continue;
      PageId to = pool_->allocate(g);
      is_whole = is_whole && to >= 0;
      if (to < 0) break;
      move_page(g, i, to, i < n_full, copies);
    }
  }
  return is_whole;
}

bool PageTable::spill(int group, int n_tokens, std::vector<PageCopy>* copies) {
  std::vector<PageId>& pages = tables_[group].pages;
  int n_full = std::min(n_tokens / page_size_, n_entries(group));
  for (int i = 0; i < n_full; ++i) {
    if (pages[i] < 0 || pool_->is_swapped(group, pages[i])) continue;
    if (PageId copy = pool_->copy_of(group, pages[i]); copy >= 0) {
      pool_->share(group, copy);
      pool_->release(group, pages[i]);
      pages[i] = copy;
      return true;
    }
    PageId to = pool_->allocate_swapped(group);
    if (to >= 0) move_page(group, i, to, true, copies);
    return to >= 0;
  }
  return false;
}

int PageTable::n_to_swap_in(int group) const {
  int n = 0;
  for (PageId page : tables_[group].pages) {
    if (page < 0 || !pool_->is_swapped(group, page)) continue;
    PageId copy = pool_->copy_of(group, page);
    n += copy < 0 || pool_->n_holders(group, copy) == 0;
  }
  return n;
}

void PageTable::take(PageTable* from) {
  for (size_t g = 0; g < tables_.size(); ++g) {
    CHECK(tables_[g].pages.empty());
    std::swap(tables_[g], from->tables_[g]);
  }
}

void PageTable::clear() {
  for (size_t g = 0; g < tables_.size(); ++g) {
    std::vector<PageId>& pages = tables_[g].pages;
    for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
      if (*page >= 0) pool_->release(static_cast<int>(g), *page);
    }
    tables_[g].pages.clear();
    tables_[g].n_left = 0;
  }
}

int PageTable::n_held(int group) const { return n_entries(group) - tables_[group].n_left; }

int PageTable::n_exclusive(int group) const {
  int n = 0;
  for (PageId page : tables_[group].pages) n += page >= 0 && pool_->n_holders(group, page) == 1;
  return n;
}

int peak_pages(int window, int page_size, int n_tokens, int chunk) {
  int all = pages_for(n_tokens, page_size);
  if (window == 0) return all;
  // A chunk sees window - 1 keys before it; neither end need lie on a page border.
  return std::min(all, pages_for(window - 1 + chunk, page_size) + 1);
}

}  // namespace tandem
