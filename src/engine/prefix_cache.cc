#include "engine/prefix_cache.h"

#define XXH_INLINE_ALL  // no library at run time
#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

// Stands for everything else that K/V depend on: constant while a worker lives; a ledger that outlives it
// gives nothing back to one for which any of that differs.
constexpr uint64_t kSeed = 0x74616e64656d0001;
constexpr uint64_t kLeanSalt = 0x9e3779b97f4a7c15;  // of blocks that the lean set computed

// Tokens [block * size, (block + 1) * size), in `scratch` if they are not contiguous.
std::span<const int32_t> block_at(const PrefixCache::Tokens& t, int block, int size,
                                  std::vector<int32_t>* scratch) {
  size_t begin = static_cast<size_t>(block) * size, end = begin + size, n_prompt = t.prompt.size();
  if (end <= n_prompt) return t.prompt.subspan(begin, size);
  if (begin >= n_prompt) return t.generated.subspan(begin - n_prompt, size);
  scratch->assign(t.prompt.begin() + begin, t.prompt.end());
  scratch->insert(scratch->end(), t.generated.begin(), t.generated.begin() + (end - n_prompt));
  return *scratch;
}

// What an entry behind `chain` names as its predecessor: at the start, the place.
uint64_t serial_of(const PrefixCache::Chain& chain) { return chain.n_blocks == 0 ? uint64_t{0} - chain.place : chain.serial; }

bool is_same(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

PrefixCache::PrefixCache(PagePool* pool, const std::vector<int>* windows, int page_size,
                         int key_bits, PageLedger* ledger, uint64_t lean_id)
    : pool_(pool),
      windows_(windows),
      page_size_(page_size),
      key_mask_(~uint64_t{0} >> (64 - key_bits)),
      ledger_(ledger),
      lean_salt_(kLeanSalt ^ lean_id) {
  for (int g = 0; g < pool->n_groups(); ++g) key_of_page_.emplace_back(pool->n_pages(g), 0);
  pool->set_on_evict([this](int group, PageId page) { drop_page(group, page); });
}

PrefixCache::~PrefixCache() { pool_->set_on_evict(nullptr); }

PrefixCache::Hit PrefixCache::find(const Tokens& tokens, int n_tokens, uint8_t place) {
  int n_groups = pool_->n_groups();
  Chain at = Chain::start(place);
  Hit hit;
  hit.chain = at;
  std::vector<const Entry*> path;
  std::vector<int> n_present(n_groups,
                             0);  // per group: blocks up to here that have a page, without a gap
  std::vector<int32_t> scratch;
  while ((at.n_blocks + 1) * page_size_ <= n_tokens) {
    std::span<const int32_t> block = block_at(tokens, at.n_blocks, page_size_, &scratch);
    std::optional<WeightSet> set = set_of(tokens, at.n_blocks);
    if (!set) break;
    uint64_t key = key_behind(at, block, *set);
    auto it = entries_.find(key);
    if (it == entries_.end() || !is_block_of(it->second, serial_of(at), block, *set)) break;
    if (!it->second.is_verified && !verify(&it->second)) {
      drop(key);
      break;
    }
    const Entry& entry = it->second;
    path.push_back(&entry);
    at = {key, entry.serial, at.n_blocks + 1, place};
    bool is_whole = true;
    for (int g = 0; g < n_groups; ++g) {
      n_present[g] = entry.pages[g] >= 0 ? n_present[g] + 1 : 0;
      int first = first_visible_page((*windows_)[g], page_size_, at.n_blocks * page_size_);
      is_whole = is_whole && n_present[g] >= at.n_blocks - first;
    }
    if (is_whole) hit.chain = at;
  }
  int n = hit.chain.n_blocks;
  for (int g = 0; g < n_groups; ++g) {
    std::vector<PageId>& pages = hit.pages.emplace_back(n, -1);
    for (int i = first_visible_page((*windows_)[g], page_size_, n * page_size_); i < n; ++i)
      pages[i] = path[i]->pages[g];
  }
  return hit;
}

void PrefixCache::publish(const Tokens& tokens, int n_tokens, PageTable* pages, Chain* chain) {
  int n_full = n_tokens / page_size_;
  if (chain->n_blocks >= n_full) return;
  if (!is_alive(*chain))
    *chain = Chain::start(chain->place);  // distrusted, pushed out by an equal key, or out of all windows
  std::vector<int32_t> scratch;
  while (chain->n_blocks < n_full) {
    int i = chain->n_blocks;
    // Pages of the swap tier are not kept: they are there for their sequence alone.
    auto page_of = [&](int g) {
      PageId page = pages->pages(g)[i];
      return page >= 0 && pool_->is_swapped(g, page) ? -1 : page;
    };
    bool has_page = false;
    for (int g = 0; g < pool_->n_groups(); ++g) has_page = has_page || page_of(g) >= 0;
    std::optional<WeightSet> set = set_of(tokens, i);
    if (!set) return;
    std::span<const int32_t> block = block_at(tokens, i, page_size_, &scratch);
    uint64_t key = key_behind(*chain, block, *set);
    auto it = entries_.find(key);
    bool is_there = it != entries_.end() && is_block_of(it->second, serial_of(*chain), block, *set);
    if (is_there && !it->second.is_verified && !verify(&it->second)) {
      drop(key);
      is_there = false;
    }
    if (!is_there && !has_page) return;  // left all windows
    Entry* entry = is_there ? &it->second : insert(key, serial_of(*chain), block, *set);
    for (int g = 0; g < pool_->n_groups(); ++g) {
      PageId page = page_of(g);
      if (page < 0 || entry->pages[g] == page) continue;
      if (entry->pages[g] >= 0) {
        pages->replace(g, i, entry->pages[g]);
        continue;
      }
      give_page(entry, key, g, page, i);
    }
    *chain = {key, entry->serial, i + 1, chain->place};
  }
}

void PrefixCache::give_page(Entry* entry, uint64_t key, int group, PageId page, int index) {
  pool_->keep(group, page);
  entry->pages[group] = page;
  key_of_page_[group][page] = key;
  if (ledger_ != nullptr)
    ledger_->on_sealed(group, page, {key, entry->serial, entry->parent, index, entry->tokens});
}

bool PrefixCache::follow(Chain* chain, std::span<const int32_t> block, WeightSet set) {
  uint64_t key = key_behind(*chain, block, set);
  auto it = entries_.find(key);
  if (it == entries_.end() || !is_block_of(it->second, serial_of(*chain), block, set)) return false;
  Entry& entry = it->second;
  if (!entry.is_verified && !verify(&entry)) {
    drop(key);
    return false;
  }
  if (std::find(entry.pages.begin(), entry.pages.end(), -1) != entry.pages.end()) return false;
  *chain = {key, entry.serial, chain->n_blocks + 1, chain->place};
  return true;
}

bool PrefixCache::add_block(Chain* chain, std::span<const int32_t> block, const std::vector<PageId>& pages,
                            WeightSet set) {
  if (!is_alive(*chain)) return false;
  uint64_t key = key_behind(*chain, block, set);
  auto it = entries_.find(key);
  bool is_there = it != entries_.end() && is_block_of(it->second, serial_of(*chain), block, set);
  Entry* entry = is_there ? &it->second : insert(key, serial_of(*chain), block, set);
  for (int g = 0; g < pool_->n_groups(); ++g) {
    if (entry->pages[g] < 0 && pages[g] >= 0) give_page(entry, key, g, pages[g], chain->n_blocks);
  }
  *chain = {key, entry->serial, chain->n_blocks + 1, chain->place};
  return true;
}

bool PrefixCache::verify(Entry* entry) {
  for (int g = 0; g < pool_->n_groups(); ++g) {
    if (entry->pages[g] >= 0 && !ledger_->verify(g, entry->pages[g])) return false;
  }
  return entry->is_verified = true;
}

int PrefixCache::restore() {
  std::vector<SealedPage> sealed = ledger_->sealed_pages();
  std::sort(sealed.begin(), sealed.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  std::unordered_map<uint64_t, uint64_t> key_of_serial = {{0, kSeed}};
  std::vector<std::vector<PageId>> kept(pool_->n_groups());
  for (const SealedPage& page : sealed) {
    if (take_restored(page, &key_of_serial)) kept[page.group].push_back(page.page);
    else ledger_->on_freed(page.group, page.page);
  }
  int n_kept = 0;
  for (int g = 0; g < pool_->n_groups(); ++g) {
    std::reverse(kept[g].begin(), kept[g].end());  // a chain loses its tail first
    pool_->restore(g, kept[g]);
    n_kept += static_cast<int>(kept[g].size());
  }
  return n_kept;
}

// Chains come in order of their blocks: a page whose predecessor is not there is unreachable.
bool PrefixCache::take_restored(const SealedPage& page,
                                std::unordered_map<uint64_t, uint64_t>* key_of_serial) {
  auto parent = key_of_serial->find(page.parent);
  bool is_start = page.parent == 0;
  if (page.serial == 0 || parent == key_of_serial->end() || is_start != (page.index == 0) ||
      static_cast<int>(page.tokens.size()) != page_size_)
    return false;
  WeightSet set = key_of(parent->second, page.tokens, WeightSet::kFull) == page.key ? WeightSet::kFull : WeightSet::kLean;
  if (key_of(parent->second, page.tokens, set) != page.key) return false;
  auto [it, is_new] = entries_.try_emplace(page.key);
  Entry& entry = it->second;
  if (is_new) {
    entry.serial = page.serial, entry.parent = page.parent, entry.tokens = page.tokens, entry.set = set;
    entry.pages.assign(pool_->n_groups(), -1);
    entry.is_verified = false;
    next_serial_ = std::max(next_serial_, page.serial + 1);
    if (!key_of_serial->emplace(page.serial, page.key).second) {  // two blocks of one number
      entries_.erase(it);
      return false;
    }
  } else if (entry.serial != page.serial || entry.pages[page.group] >= 0) {
    return false;
  }
  entry.pages[page.group] = page.page;
  key_of_page_[page.group][page.page] = page.key;
  return true;
}

void PrefixCache::distrust(const PageTable& pages) {
  for (int g = 0; g < pool_->n_groups(); ++g) {
    for (int i = 0; i < pages.n_entries(g); ++i) {
      PageId page = pages.pages(g)[i];
      if (page >= 0 && pool_->is_kept(g, page)) drop(key_of_page_[g][page]);
    }
  }
}

uint64_t PrefixCache::key_behind(const Chain& chain, std::span<const int32_t> block, WeightSet set) const {
  return key_of(chain.n_blocks == 0 ? kSeed - chain.place : chain.key, block, set);
}

uint64_t PrefixCache::key_of(uint64_t previous, std::span<const int32_t> block, WeightSet set) const {
  uint64_t seed = set == WeightSet::kLean ? previous ^ lean_salt_ : previous;
  return XXH3_64bits_withSeed(block.data(), block.size_bytes(), seed) & key_mask_;
}

bool PrefixCache::is_block_of(const Entry& entry, uint64_t parent, std::span<const int32_t> block, WeightSet set) const {
  return entry.parent == parent && entry.set == set && is_same(entry.tokens, block);
}

// The one set that computed a block, or is going to; none if there are two.
std::optional<WeightSet> PrefixCache::set_of(const Tokens& t, int block) const {
  if (t.weights == nullptr) return t.next;
  int begin = block * page_size_;
  if (t.weights->run(begin, t.next) < page_size_) return std::nullopt;
  return t.weights->at(begin, t.next);
}

bool PrefixCache::is_alive(const Chain& chain) const {
  if (chain.serial == 0) return true;
  auto it = entries_.find(chain.key);
  return it != entries_.end() && it->second.serial == chain.serial;
}

// An entry of this key that cannot be reached any more, or another block's, makes way.
PrefixCache::Entry* PrefixCache::insert(uint64_t key, uint64_t parent,
                                        std::span<const int32_t> block, WeightSet set) {
  if (entries_.contains(key)) drop(key);
  Entry& entry = entries_[key];
  entry.serial = next_serial_++;
  entry.parent = parent;
  entry.set = set;
  entry.tokens.assign(block.begin(), block.end());
  entry.pages.assign(pool_->n_groups(), -1);
  return &entry;
}

void PrefixCache::drop_page(int group, PageId page) {
  uint64_t key = key_of_page_[group][page];
  Entry& entry = entries_.at(key);
  DCHECK(entry.pages[group] == page);
  bool is_last =
      std::count_if(entry.pages.begin(), entry.pages.end(), [](PageId p) { return p >= 0; }) == 1;
  if ((*windows_)[group] == 0 || is_last) return drop(key);
  entry.pages[group] = -1;
  pool_->forget(group, page);
}

void PrefixCache::drop(uint64_t key) {
  auto it = entries_.find(key);
  for (int g = 0; g < pool_->n_groups(); ++g) {
    if (PageId page = it->second.pages[g]; page >= 0) pool_->forget(g, page);
  }
  entries_.erase(it);
}

}  // namespace tandem
