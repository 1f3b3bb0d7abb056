#include "engine/page_pool.h"

#include "base/check.h"

namespace tandem {

PagePool::PagePool(const std::vector<int>& n_pages) {
  for (int n : n_pages) {
    Group& group = groups_.emplace_back();
    group.pages.resize(n);
    for (PageId page = n - 1; page >= 0; --page) group.free.push_back(page);
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
  return page;
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
  if (p.is_kept) add_idle(&g, page);
  else g.free.push_back(page);
}

void PagePool::keep(int group, PageId page) {
  Page& p = groups_[group].pages[page];
  CHECK(p.n_holders > 0 && !p.is_kept);
  p.is_kept = true;
}

void PagePool::forget(int group, PageId page) {
  Group& g = groups_[group];
  Page& p = g.pages[page];
  CHECK(p.is_kept);
  p.is_kept = false;
  if (p.n_holders > 0) return;
  remove_idle(&g, page);
  g.free.push_back(page);
}

void PagePool::add_idle(Group* g, PageId page) {
  Page& p = g->pages[page];
  p.older = g->newest_idle, p.newer = -1;
  if (p.older >= 0) g->pages[p.older].newer = page;
  else g->oldest_idle = page;
  g->newest_idle = page;
  ++g->n_idle;
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

int64_t PagePool::n_used() const {
  int64_t n = 0;
  for (int g = 0; g < n_groups(); ++g) n += n_pages(g) - n_free(g);
  return n;
}

}  // namespace tandem
