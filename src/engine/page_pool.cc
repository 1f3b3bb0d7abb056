#include "engine/page_pool.h"

#include "base/check.h"

namespace tandem {

PagePool::PagePool(const std::vector<int>& n_pages, const std::vector<int>& n_swap_pages) {
  CHECK(n_swap_pages.empty() || n_swap_pages.size() == n_pages.size());
  for (size_t g = 0; g < n_pages.size(); ++g) {
    Group& group = groups_.emplace_back();
    group.n_device = n_pages[g];
    int n_all = n_pages[g] + (n_swap_pages.empty() ? 0 : n_swap_pages[g]);
    group.pages.resize(n_all);
    for (PageId page = n_all - 1; page >= group.n_device; --page) group.swap_free.push_back(page);
    for (PageId page = group.n_device - 1; page >= 0; --page) group.free.push_back(page);
  }
}

PageId PagePool::allocate(int group) {
  Group& g = groups_[group];
  if (g.free.empty()) {
    if (g.n_idle == 0) return -1;
    on_evict_(group, g.oldest_idle);
    CHECK(!g.free.empty());
  }
  PageId page = g.free.back();
  g.free.pop_back();
  DCHECK(g.pages[page].n_holders == 0 && !g.pages[page].is_kept);
  g.pages[page].n_holders = 1;
  if (ledger_ != nullptr) ledger_->on_taken(group, page);
  return page;
}

PageId PagePool::allocate_swapped(int group) {
  Group& g = groups_[group];
  if (g.swap_free.empty()) return -1;
  PageId page = g.swap_free.back();
  g.swap_free.pop_back();
  DCHECK(g.pages[page].n_holders == 0);
  g.pages[page].n_holders = 1;
  if (ledger_ != nullptr) ledger_->on_taken(group, page);
  return page;
}

void PagePool::link(int group, PageId a, PageId b) {
  Group& g = groups_[group];
  CHECK(is_swapped(group, a) != is_swapped(group, b));
  CHECK(g.pages[a].copy < 0 && g.pages[b].copy < 0);
  g.pages[a].copy = b, g.pages[b].copy = a;
}

void PagePool::set_free(int group, PageId page) {
  Group* g = &groups_[group];
  Page& p = g->pages[page];
  if (p.copy >= 0) g->pages[p.copy].copy = -1;
  p.copy = -1;
  (page < g->n_device ? g->free : g->swap_free).push_back(page);
  if (ledger_ != nullptr) ledger_->on_freed(group, page);
}

void PagePool::share(int group, PageId page) {
  Group& g = groups_[group];
  Page& p = g.pages[page];
  CHECK(p.n_holders > 0 || p.is_kept);
  if (p.n_holders == 0) remove_idle(&g, page);
  if (++p.n_holders == 2) ++n_shared_;
}

void PagePool::release(int group, PageId page) {
  Group& g = groups_[group];
  Page& p = g.pages[page];
  CHECK(p.n_holders > 0);
  if (p.n_holders == 2) --n_shared_;
  if (--p.n_holders > 0) return;
  if (p.is_kept) add_idle(group, page);
  else set_free(group, page);
}

void PagePool::keep(int group, PageId page) {
  Page& p = groups_[group].pages[page];
  CHECK(p.n_holders > 0 && !p.is_kept && !is_swapped(group, page));
  p.is_kept = true;
}

void PagePool::forget(int group, PageId page) {
  Group& g = groups_[group];
  Page& p = g.pages[page];
  CHECK(p.is_kept);
  p.is_kept = false;
  if (p.n_holders > 0) {
    if (ledger_ != nullptr) ledger_->on_unsealed(group, page);
    return;
  }
  remove_idle(&g, page);
  set_free(group, page);
}

void PagePool::restore(int group, const std::vector<PageId>& pages) {
  Group& g = groups_[group];
  for (PageId page : pages) {
    CHECK(g.pages[page].n_holders == 0 && !g.pages[page].is_kept && !is_swapped(group, page));
    g.pages[page].is_kept = true;
  }
  std::erase_if(g.free, [&](PageId page) { return g.pages[page].is_kept; });
  for (PageId page : pages) add_idle(group, page);
}

void PagePool::add_idle(int group, PageId page) {
  Group* g = &groups_[group];
  Page& p = g->pages[page];
  p.older = g->newest_idle, p.newer = -1;
  if (p.older >= 0) g->pages[p.older].newer = page;
  else g->oldest_idle = page;
  g->newest_idle = page;
  ++g->n_idle;
  while (g->n_idle > idle_limit_) on_evict_(group, g->oldest_idle);
}

void PagePool::remove_idle(Group* g, PageId page) {
  Page& p = g->pages[page];
  if (p.older >= 0) g->pages[p.older].newer = p.newer;
  else g->oldest_idle = p.newer;
  if (p.newer >= 0) g->pages[p.newer].older = p.older;
  else g->newest_idle = p.older;
  p.older = p.newer = -1;
  --g->n_idle;
}

int64_t PagePool::n_free() const {
  int64_t n = 0;
  for (int g = 0; g < n_groups(); ++g) n += n_free(g);
  return n;
}

int64_t PagePool::n_swapped() const {
  int64_t n = 0;
  for (int g = 0; g < n_groups(); ++g) n += n_swap_pages(g) - n_swap_free(g);
  return n;
}

int64_t PagePool::n_used() const {
  int64_t n = 0;
  for (int g = 0; g < n_groups(); ++g) n += n_pages(g) - n_free(g);
  return n;
}

}  // namespace tandem
