// Who holds which KV page: integers only, the bytes belong to the backend. A page may be held several times
// (choices of one request share the full pages of their prompt, and so do requests that begin alike). When the
// last holder lets go, it is free, or idle if the prefix cache keeps it: idle pages count as free, and the one
// idle for longest is evicted where no other page is left. Confined to the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/step_batch.h"

namespace tandem {

class PagePool {
 public:
  explicit PagePool(const std::vector<int>& n_pages);  // per KV group
  // Called by allocate() for the idle page it needs; must forget() that page, may forget others.
  void set_on_evict(std::function<void(int group, PageId page)> on_evict) { on_evict_ = std::move(on_evict); }

  // A free page of the group, held once; -1 when there is none (normal under load).
  PageId allocate(int group);
  void share(int group, PageId page);    // one more holder of a page that is held or kept
  void release(int group, PageId page);  // one less; the page is free or idle when none is left
  void keep(int group, PageId page);     // held: becomes idle, not free, after its last holder
  void forget(int group, PageId page);   // undoes keep(); free at once if idle

  int n_groups() const { return static_cast<int>(groups_.size()); }
  int n_pages(int group) const { return static_cast<int>(groups_[group].pages.size()); }
  int n_free(int group) const { return static_cast<int>(groups_[group].free.size()) + groups_[group].n_idle; }
  int n_idle(int group) const { return groups_[group].n_idle; }
  bool is_kept(int group, PageId page) const { return groups_[group].pages[page].is_kept; }
  int n_holders(int group, PageId page) const { return groups_[group].pages[page].n_holders; }
  int64_t n_used() const;    // all groups; held pages
  int64_t n_free() const;    // all groups; idle ones included
  int64_t n_shared() const { return n_shared_; }  // pages with more than one holder

 private:
  struct Page {
    int32_t n_holders = 0;
    bool is_kept = false;
    PageId older = -1, newer = -1;  // neighbours in the list of idle pages
  };
  struct Group {
    std::vector<Page> pages;
    std::vector<PageId> free;  // stack
    PageId oldest_idle = -1, newest_idle = -1;
    int n_idle = 0;
  };
  static void add_idle(Group* group, PageId page);
  static void remove_idle(Group* group, PageId page);

  std::vector<Group> groups_;
  std::function<void(int, PageId)> on_evict_;
  int64_t n_shared_ = 0;
};

}  // namespace tandem
