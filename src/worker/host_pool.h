// The KV pages of a worker in a memfd that tandemd created and holds, so that they outlive the worker: a header,
// a table with a slot per page, then the pages of each KV group. The owner maps it to write; a decode worker
// maps the pool of a prefill worker to read what it is lent. Whatever is read from it is foreign: a worker that
// died in the middle of a store left it, or a bug did. Sizes are checked against what this model needs, table
// entries and contents against their checksums, and nothing that does not fit is used.
//
// DESIGN. A slot's state changes only after (sealing) or before (anything else) the rest of it, so a death
// between two stores leaves a slot that is not sealed, or one whose checksum does not fit. `serial` counts the
// times a page was given away: a reader compares it before and after its copy, so that a page that changed
// hands meanwhile is never taken for the one it was lent.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/page_ledger.h"

namespace tandem {

struct HostPoolShape {
  // Of all that K/V depend on: another one's pages are not read. 0, of a reader that computes otherwise than its
  // lenders (on a device): any.
  uint64_t fingerprint = 0;
  int page_size = 16;        // tokens
  int vocab_size = 0;
  std::vector<int64_t> page_bytes;  // per KV group
  std::vector<int> n_pages;         // per KV group; a reader leaves it empty and takes the owner's
};

struct HostPoolHeader;
struct HostPoolSlot;

// Confined to the engine thread, but for touch().
class HostPool : public PageLedger {
 public:
  // Bytes of the memfd for this shape. kExhausted: they do not fit 64 bits.
  static Result<int64_t> bytes_needed(const HostPoolShape& shape);
  // Maps an own pool of at least bytes_needed(). What a predecessor of the same shape and fingerprint sealed is
  // there in sealed_pages(); anything else is wiped. `generation` tells readers that the owner is another.
  static Result<std::unique_ptr<HostPool>> open(int fd, const HostPoolShape& shape, uint64_t generation);
  // Maps another worker's pool for reading. kDataLoss names the field that does not fit.
  static Result<std::unique_ptr<HostPool>> open_reader(int fd, const HostPoolShape& shape);
  ~HostPool() override;
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  uint8_t* group_memory(int group) const { return memory_ + group_offsets_[static_cast<size_t>(group)]; }
  uint8_t* page_memory(int group, PageId page) const {
    return group_memory(group) + static_cast<size_t>(page) * static_cast<size_t>(shape_.page_bytes[static_cast<size_t>(group)]);
  }
  uint8_t* memory() const { return memory_; }  // header and table first
  const HostPoolShape& shape() const { return shape_; }
  uint64_t generation() const;
  // Commits the memory by `n_threads` (>= 1; the kernel clears pages at one core's speed each): until done or `stop`.
  // `on_progress` gets 0 to 1, on the calling thread. Any thread. kExhausted: it is not there.
  Status touch(int n_threads, const std::atomic<bool>& stop, const std::function<void(float)>& on_progress = {});
  bool is_committed() const;  // by this worker or an earlier one: touch() only fills page tables

  // Copies a lent page: kInvalidArgument for a page that is not in the pool, kUnavailable when the owner is
  // another by now or the page was freed or given away, kDataLoss when a sealed page fails its checksum.
  Status copy_lent(uint64_t generation, int group, PageId page, uint32_t serial, uint8_t* to) const;

  // PageLedger
  void on_taken(int group, PageId page) override;
  void on_freed(int group, PageId page) override;
  void on_sealed(int group, PageId page, const SealedBlock& block) override;
  void on_unsealed(int group, PageId page) override;
  uint32_t serial(int group, PageId page) const override;
  std::vector<SealedPage> sealed_pages() override;
  bool verify(int group, PageId page) override;

 private:
  HostPool(HostPoolShape shape, uint8_t* memory, size_t n_bytes);
  Status adopt_header(uint64_t generation);
  HostPoolHeader* header() const;
  HostPoolSlot* slot(int group, PageId page) const;
  bool is_sound(const HostPoolSlot& slot) const;
  uint64_t page_checksum(int group, PageId page, uint64_t key) const;
  std::string name_of(int group, PageId page) const;

  HostPoolShape shape_;
  uint8_t* memory_;
  size_t n_bytes_;
  size_t table_bytes_ = 0;             // header and slots
  std::vector<size_t> slot_begins_;    // per group: index of its first slot
  std::vector<size_t> group_offsets_;  // per group: bytes from the start of the mapping
};

}  // namespace tandem
