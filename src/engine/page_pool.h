// Who holds which KV page: integers only, the bytes belong to the backend. A page may be held several times
// (choices of one request share the full pages of their prompt) and is free again when the last holder lets
// go. Confined to the engine thread.
#pragma once

#include <cstdint>
#include <vector>

#include "model/step_batch.h"

namespace tandem {

class PagePool {
 public:
  explicit PagePool(const std::vector<int>& n_pages);  // per KV group

  // A free page of the group, held once; -1 when there is none (normal under load).
  PageId allocate(int group);
  void share(int group, PageId page);    // one more holder
  void release(int group, PageId page);  // one less; the page is free when none is left

  int n_groups() const { return static_cast<int>(groups_.size()); }
  int n_pages(int group) const { return static_cast<int>(groups_[group].holders.size()); }
  int n_free(int group) const { return static_cast<int>(groups_[group].free.size()); }
  int n_holders(int group, PageId page) const { return groups_[group].holders[page]; }
  int64_t n_used() const;    // all groups
  int64_t n_free() const;
  int64_t n_shared() const { return n_shared_; }  // pages with more than one holder

 private:
  struct Group {
    std::vector<int32_t> holders;  // by page; 0: free
    std::vector<PageId> free;      // stack
  };
  std::vector<Group> groups_;
  int64_t n_shared_ = 0;
};

}  // namespace tandem
