#include "engine/page_pool.h"

#include "base/check.h"

namespace tandem {

PagePool::PagePool(const std::vector<int>& n_pages) {
  for (int n : n_pages) {
    Group& group = groups_.emplace_back();
    group.holders.assign(n, 0);
    for (PageId page = n - 1; page >= 0; --page) group.free.push_back(page);
  }
}

PageId PagePool::allocate(int group) {
  Group& g = groups_[group];
  if (g.free.empty()) return -1;
  PageId page = g.free.back();
  g.free.pop_back();
  DCHECK(g.holders[page] == 0);
  g.holders[page] = 1;
  return page;
}

void PagePool::share(int group, PageId page) {
  int32_t& holders = groups_[group].holders[page];
  CHECK(holders > 0);
  if (++holders == 2) ++n_shared_;
}

void PagePool::release(int group, PageId page) {
  Group& g = groups_[group];
  int32_t& holders = g.holders[page];
  CHECK(holders > 0);
  if (holders == 2) --n_shared_;
  if (--holders == 0) g.free.push_back(page);
}

int64_t PagePool::n_free() const {
  int64_t n = 0;
  for (const Group& g : groups_) n += static_cast<int64_t>(g.free.size());
  return n;
}

int64_t PagePool::n_used() const {
  int64_t n = 0;
  for (const Group& g : groups_) n += static_cast<int64_t>(g.holders.size() - g.free.size());
  return n;
}

}  // namespace tandem
