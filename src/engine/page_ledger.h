// What is written down beside the pages of a pool that outlives its worker: who took a page, and what a sealed
// one holds, so that the next worker finds the prefix cache of this one. Called on the engine thread, at the
// moment a page changes hands. An engine without one keeps its accounts to itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/step_batch.h"

namespace tandem {

// A full block of the prefix cache, as its entry there.
struct SealedBlock {
  uint64_t key = 0, serial = 0, parent = 0;  // see PrefixCache
  int index = 0;                             // blocks before it
  std::span<const int32_t> tokens;
};
struct SealedPage {  // as found at start
  int group = 0;
  PageId page = -1;
  uint64_t key = 0, serial = 0, parent = 0;
  int index = 0;
  std::vector<int32_t> tokens;
};

class PageLedger {
 public:
  virtual ~PageLedger() = default;
  virtual void on_taken(int group, PageId page) = 0;  // its content is nobody's any more
  virtual void on_freed(int group, PageId page) = 0;
  // The page is full and stays as it is until on_unsealed or on_freed.
  virtual void on_sealed(int group, PageId page, const SealedBlock& block) = 0;
  virtual void on_unsealed(int group, PageId page) = 0;  // held on, but no longer to be found again
  // Changes with on_taken: a page named with an older number is another's by now.
  virtual uint32_t serial(int group, PageId page) const = 0;
  // Sealed pages of earlier lives, whose table entries are sound; asked once, before anything is taken. Their
  // content is believed only after verify().
  virtual std::vector<SealedPage> sealed_pages() = 0;
  // Whether the content is that which was sealed.
  virtual bool verify(int group, PageId page) = 0;
};

}  // namespace tandem
