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
