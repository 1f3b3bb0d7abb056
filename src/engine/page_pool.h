// Who holds which KV page: integers only, the bytes belong to the backend. A page may be held several times
// (choices of one request share the full pages of their prompt, and so do requests that begin alike). When the
// last holder lets go, it is free, or idle if the prefix cache keeps it: idle pages count as free, and the one
// idle for longest is evicted where no other page is left. Confined to the engine thread.
//
// Behind the device's pages of a group may follow pages of the swap tier, with numbers from n_pages() on: slower
// memory, or memory with a budget of its own. They are never given out but by allocate_swapped(). A full page
// that was copied between the tiers is linked to its copy: while both live, moving either needs no copy, and
// sequences that shared the one share the other.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/page_ledger.h"
#include "model/step_batch.h"

namespace tandem {

class PagePool {
 public:
  // Per KV group; no second list: no swap tier.
  explicit PagePool(const std::vector<int>& n_pages, const std::vector<int>& n_swap_pages = {});
  // Called by allocate() for the idle page it needs; must forget() that page, may forget others.
  void set_on_evict(std::function<void(int group, PageId page)> on_evict) { on_evict_ = std::move(on_evict); }

  void set_ledger(PageLedger* ledger) { ledger_ = ledger; }  // hears of every page taken and freed

  // A free page of the group, held once; -1 when there is none (normal under load).
  PageId allocate(int group);
  PageId allocate_swapped(int group);    // as allocate(), in the swap tier
  // Two pages of different tiers have the same content for as long as both are held or kept.
  void link(int group, PageId a, PageId b);
  PageId copy_of(int group, PageId page) const { return groups_[group].pages[page].copy; }  // -1: none
  void share(int group, PageId page);    // one more holder of a page that is held or kept
  void release(int group, PageId page);  // one less; the page is free or idle when none is left
  void keep(int group, PageId page);     // held: becomes idle, not free, after its last holder
  void forget(int group, PageId page);   // undoes keep(); free at once if idle
  // Before the first allocate(): these free pages are idle, kept from an earlier life; the last is the newest.
  void restore(int group, const std::vector<PageId>& pages);

  int n_groups() const { return static_cast<int>(groups_.size()); }
  // At most so many idle pages a group; beyond, the one idle for longest is evicted.
  void set_idle_limit(int n_pages) { idle_limit_ = n_pages; }
  int n_pages(int group) const { return groups_[group].n_device; }
  bool is_swapped(int group, PageId page) const { return page >= groups_[group].n_device; }
  int n_swap_pages(int group) const { return static_cast<int>(groups_[group].pages.size()) - n_pages(group); }
  int n_swap_free(int group) const { return static_cast<int>(groups_[group].swap_free.size()); }
  int64_t n_swapped() const;  // all groups; held pages of the swap tier
  int n_free(int group) const { return static_cast<int>(groups_[group].free.size()) + groups_[group].n_idle; }
  int n_idle(int group) const { return groups_[group].n_idle; }
  bool is_kept(int group, PageId page) const { return groups_[group].pages[page].is_kept; }
  int n_holders(int group, PageId page) const { return groups_[group].pages[page].n_holders; }
  int64_t n_used() const;    // all groups; held pages, those of the swap tier apart
  int64_t n_free() const;    // all groups; idle ones included
  int64_t n_shared() const { return n_shared_; }  // pages with more than one holder

 private:
  struct Page {
    int32_t n_holders = 0;
    bool is_kept = false;
    PageId older = -1, newer = -1;  // neighbours in the list of idle pages
    PageId copy = -1;
  };
  struct Group {
    std::vector<Page> pages;
    int n_device = 0;
    std::vector<PageId> free, swap_free;  // stacks
    PageId oldest_idle = -1, newest_idle = -1;
    int n_idle = 0;
  };
  void add_idle(int group, PageId page);
  void set_free(int group, PageId page);
  static void remove_idle(Group* group, PageId page);

  std::vector<Group> groups_;
  std::function<void(int, PageId)> on_evict_;
  PageLedger* ledger_ = nullptr;
  int64_t n_shared_ = 0;
  int idle_limit_ = INT32_MAX;
};

}  // namespace tandem
