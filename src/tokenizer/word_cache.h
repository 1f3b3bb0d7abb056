// Words already encoded in this call: text repeats its words, and copying ids is far cheaper than
// merging again. Direct-mapped, one call long, so no locks and nothing to invalidate. Holds no ids:
// a word's ids stand in the output where it was first encoded.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace tandem {

// FNV-like hash over 8-byte pieces; no protection against crafted collisions is needed, since a
// collision only costs a miss.
inline uint64_t hash_bytes(std::string_view s) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15ull;
  uint64_t h = s.size() * kMultiplier;
  size_t i = 0;
  for (; i + 8 <= s.size(); i += 8) {
    uint64_t piece;
    std::memcpy(&piece, s.data() + i, 8);
    h = std::rotl(h ^ piece, 29) * kMultiplier;
  }
  uint64_t tail = 0;
  std::memcpy(&tail, s.data() + i, s.size() - i);
  h = std::rotl(h ^ tail, 29) * kMultiplier;
  return h ^ h >> 32;
}

class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 64;  // longer words hardly repeat

  // text_bytes: length of the text to be encoded; a short one gets a small table.
  explicit WordCache(size_t text_bytes)
      : slots_(std::bit_ceil(std::clamp<size_t>(text_bytes / 8, 16, 1 << 15))) {}

  // Appends the ids of `word` if it is known. The texts of earlier words must still live, *ids be
  // the same.
  bool append(std::string_view word, std::vector<int32_t>* ids) {
    if (word.size() > kMaxWordBytes) return false;
    const Slot& slot = slot_of(word);
    if (slot.word != word) return false;
    const size_t end = ids->size();
    ids->resize(end + slot.n_ids);
    std::copy_n(ids->begin() + static_cast<std::ptrdiff_t>(slot.first_id), slot.n_ids,
                ids->begin() + static_cast<std::ptrdiff_t>(end));
    return true;
  }
  // `word` was just encoded to ids[first_id, end).
  void remember(std::string_view word, size_t first_id, const std::vector<int32_t>& ids) {
    if (word.size() > kMaxWordBytes) return;
    slot_of(word) = {word, first_id, static_cast<uint32_t>(ids.size() - first_id)};
  }

 private:
  struct Slot {
    std::string_view word;  // empty: free
    size_t first_id = 0;
    uint32_t n_ids = 0;
  };
  Slot& slot_of(std::string_view word) { return slots_[hash_bytes(word) & (slots_.size() - 1)]; }
  std::vector<Slot> slots_;
};

}  // namespace tandem
