// Full pages of sequences, found again by what precedes and fills them, so that a prompt that
// begins like an earlier sequence computes only the rest.
//
// DESIGN. A block is page_size tokens at a page border; its key is the xxHash of its tokens chained
// on the key of the block before, and on the set of weights that computed the block: one set all of it,
// else it is not published, nor what follows it. The chain starts at a seed that stands for what is constant while
// a worker lives: model, weights, element type, place, kernels. An entry holds a block's tokens and
// its page in every KV group, and names its predecessor; a lookup believes no hash: it compares the
// tokens and the predecessor of each block, so a hit has the very tokens asked for. Entries are
// published when their last token is computed and hold no page against the pool: pages without a
// holder stay idle until the pool wants one back, least recently used first. A sequence holds the
// pages of the chain it extends, even if another computed the same at the same time, and lets go of
// the last first: a prefix loses its tail before its head. A page of a full-attention group is
// needed by whatever follows, so its entry goes with it; the page of a windowed group may go alone.
// A hit of n tokens is given only if each group has all the pages that a run without the cache
// would still hold at position n (for a window, those that it reaches back to); else a shorter one
// is looked for. If all groups have windows, entries vanish from the head of the chain, and only
// what is still reachable from the start is found.
// With a ledger, published pages are sealed there, and restore() makes those of an earlier life findable again;
// such a page is used only once its content was checked.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/page_pool.h"
#include "engine/page_table.h"
#include "engine/weight_spans.h"

namespace tandem {

// Confined to the engine thread.
class PrefixCache {
 public:
  // The end of a chain of blocks; default: the empty chain. Chains of two places (EngineRequest::place) have no block
  // in common: the same tokens have other bits there.
  struct Chain {
    uint64_t key = 0, serial = 0;  // serial 0: the start
    int n_blocks = 0;
    uint8_t place = 0;
    static Chain start(uint8_t place) { return {0, 0, 0, place}; }
  };
  struct Tokens {
    std::span<const int32_t> prompt, generated;
    const WeightSpans* weights = nullptr;        // null: all computed with, or to be computed with, `next`
    WeightSet next = WeightSet::kFull;           // of positions not recorded there
  };
  struct Hit {
    Chain chain;
    std::vector<std::vector<PageId>>
        pages;  // per group, chain.n_blocks entries; -1: out of the window
  };

  // Pool and windows outlive the cache. `key_bits`: tests narrow the keys to see them collide. `lean_id`: which lean set
  // this worker has, so that restore() gives nothing back that another one computed.
  PrefixCache(PagePool* pool, const std::vector<int>* windows, int page_size, int key_bits = 64,
              PageLedger* ledger = nullptr, uint64_t lean_id = 0);
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache();

  // The longest hit within the first n_tokens tokens. Its pages are nobody's until shared.
  Hit find(const Tokens& tokens, int n_tokens, uint8_t place = 0);
  // Takes over what the ledger has sealed; once, before anything is published. Pages of broken chains are freed.
  // Returns the number of pages that can be found again.
  int restore();
  // Publishes the full blocks of [0, n_tokens), which `pages` holds, and moves `chain` behind them.
  // Where a block is there already, `pages` shares its page and gives back its own, the same
  // numbers computed twice.
  void publish(const Tokens& tokens, int n_tokens, PageTable* pages, Chain* chain);
  // Moves `chain` behind `block` if that is there with all its pages.
  bool follow(Chain* chain, std::span<const int32_t> block, WeightSet set = WeightSet::kFull);
  // Publishes `block` behind `chain`, computed elsewhere: `pages` (per group, -1: none) are held by the caller,
  // who lets go of them afterwards. False: the chain is not there any more.
  bool add_block(Chain* chain, std::span<const int32_t> block, const std::vector<PageId>& pages,
                 WeightSet set = WeightSet::kFull);
  // Drops whatever was published of these pages: their numbers are not to be trusted.
  void distrust(const PageTable& pages);

  size_t n_entries() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t serial = 0, parent = 0;
    std::vector<int32_t> tokens;
    WeightSet set = WeightSet::kFull;
    std::vector<PageId> pages;  // per group; -1: none
    bool is_verified = true;    // false: of an earlier life, content not yet looked at
  };
  uint64_t key_behind(const Chain& chain, std::span<const int32_t> block, WeightSet set) const;
  uint64_t key_of(uint64_t previous, std::span<const int32_t> block, WeightSet set) const;
  bool is_block_of(const Entry& entry, uint64_t parent, std::span<const int32_t> block, WeightSet set) const;
  std::optional<WeightSet> set_of(const Tokens& tokens, int block) const;
  bool is_alive(const Chain& chain) const;
  void give_page(Entry* entry, uint64_t key, int group, PageId page, int index);
  Entry* insert(uint64_t key, uint64_t parent, std::span<const int32_t> block, WeightSet set);
  bool verify(Entry* entry);
  bool take_restored(const SealedPage& page, std::unordered_map<uint64_t, uint64_t>* key_of_serial);
  void drop_page(int group, PageId page);
  void drop(uint64_t key);

  PagePool* const pool_;
  const std::vector<int>* const windows_;
  const int page_size_;
  const uint64_t key_mask_;
  PageLedger* const ledger_;
  const uint64_t lean_salt_;
  uint64_t next_serial_ = 1;
  std::unordered_map<uint64_t, Entry> entries_;     // by key
  std::vector<std::vector<uint64_t>> key_of_page_;  // per group and page, if kept
};

}  // namespace tandem
