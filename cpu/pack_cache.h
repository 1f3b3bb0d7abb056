// The packed weights of a model in a file, so that a restart maps them instead of packing again and several
// processes share one copy. The file is named by its contents: ISA, kPackVersion, the model file's stamp and a
// hash of the model's matrices; header and every matrix carry a checksum, all checked before use. Whatever is
// wrong with it is a reason to pack anew, never to stop. Opens no path: both descriptors come from outside.
// load() and keep() on the loading thread; afterwards store() on any one thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "cpu/arena.h"
#include "cpu/omp_team.h"
#include "kernels/quant_traits.h"

namespace tandem {

// Where a packed matrix lies: `offset` from the start of all packed bytes, a multiple of 64.
struct PackedPlace {
  std::string name;  // "layer 3 wq"
  GgmlType type = GgmlType::kF32;
  int64_t n_rows = 0, n_cols = 0;
  size_t offset = 0, size = 0;
};

// A checked file, mapped read-only and shared; the packed bytes start at `data`.
struct MappedWeights {
  Arena bytes;
  const uint8_t* data = nullptr;
};

class PackCache {
 public:
  using Hash = std::array<uint64_t, 2>;

  // existing: what an earlier start stored; fresh: an empty file open for reading and writing. Either may be
  // invalid. model_stamp changes whenever the model's file does.
  PackCache(UniqueFd existing, UniqueFd fresh, std::string model_stamp);

  // kNotFound: no file; kFailedPrecondition: of another model, ISA or version; kDataLoss: damaged. model_hash
  // (of the matrices in the model file) is called only where the stamp differs: a copied or touched model is
  // still the same.
  Result<MappedWeights> load(const std::string& isa, const std::vector<PackedPlace>& places, size_t n_bytes,
                             const std::function<Hash()>& model_hash, OmpTeam* team);
  bool can_store() const { return fresh_.valid(); }
  // What store() is to write. `data` (n_bytes) must outlive it.
  void keep(const std::string& isa, std::vector<PackedPlace> places, size_t n_bytes, const Hash& model_hash,
            const uint8_t* data);
  bool has_kept() const { return data_ != nullptr; }
  // Writes what keep() was given, down to the disk, and closes the file. kExhausted: disk or quota full;
  // kCancelled: `stop` was set.
  Status store(const std::atomic<bool>& stop);

  bool is_hit() const { return is_hit_; }
  const std::string& miss_reason() const { return miss_reason_; }

 private:
  Status write_all(const void* bytes, size_t size, const std::atomic<bool>& stop);

  UniqueFd existing_, fresh_;
  const std::string model_stamp_;
  bool is_hit_ = false;
  std::string miss_reason_;
  std::string isa_;
  std::vector<PackedPlace> places_;
  size_t n_bytes_ = 0;
  Hash model_hash_{};
  const uint8_t* data_ = nullptr;
};

}  // namespace tandem
