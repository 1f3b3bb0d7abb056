// The packed weights of a model in a file, so that a restart maps them instead of packing again and several
// processes share one copy. The file is named by its contents: ISA, kPackVersion, the model file's stamp and a
// hash of the model's matrices; header and every matrix carry a checksum. The header is always checked before use;
// the matrices too, unless the file was found whole before and no stop of the machine may have torn it since: then
// verify() checks them behind the service. Whatever is wrong with it is a reason to pack anew, never to stop. Opens no
// path: both descriptors come from outside. load() and keep() on the loading thread; afterwards verify() and store()
// on any one thread.
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

// Milliseconds of a step of one token with either set of weights, as measured on this machine with so many threads, and
// the perplexity of a text that every model gets; 0: never measured. Of the two sets that there were then: `lean_file`
// stands for the file that the lean one came from, zeros: it was half of these weights.
struct SetFigures {
  double full_ms = 0, lean_ms = 0;
  double full_perplexity = 0, lean_perplexity = 0;
  uint32_t n_threads = 0;
  std::array<uint64_t, 2> lean_file{};
  bool operator==(const SetFigures&) const = default;
};

// A file mapped read-only and shared; the packed bytes start at `data`.
struct MappedWeights {
  Arena bytes;
  const uint8_t* data = nullptr;
};

class PackCache {
 public:
  using Hash = std::array<uint64_t, 2>;

  struct Files {
    UniqueFd existing;        // what an earlier start stored, or invalid
    UniqueFd fresh;           // an empty file open for reading and writing, or invalid
    bool is_trusted = false;  // `existing` was found whole since the last unclean stop
    bool is_shared = false;   // other processes map it too: then never a private copy
  };
  // model_stamp changes whenever the model's file does.
  PackCache(Files files, std::string model_stamp);

  // kNotFound: no file; kFailedPrecondition: of another model, ISA or version; kDataLoss: damaged. model_hash
  // (of the matrices in the model file) is called only where the stamp differs: a copied or touched model is
  // still the same, and with a fresh file at hand the new stamp is stored too, so that it is asked once.
  Result<MappedWeights> load(const std::string& isa, const std::vector<PackedPlace>& places, size_t n_bytes,
                             const std::function<Hash()>& model_hash, OmpTeam* team);
  bool can_store() const { return files_.fresh.valid(); }
  // What store() is to write. `data` (n_bytes) must outlive it.
  void keep(const std::string& isa, std::vector<PackedPlace> places, size_t n_bytes, const Hash& model_hash,
            const uint8_t* data);
  bool has_kept() const { return data_ != nullptr; }
  // How each matrix is multiplied, where that was measured (dense_choice.h): stored with them, 0 where it was not. Set
  // before store(); a mapped file whose choices are others is stored anew, where it can be.
  const std::vector<uint32_t>& choices() const { return choices_; }
  void set_choices(const std::string& isa, std::vector<uint32_t> choices);
  // The same of both weight sets' figures.
  const SetFigures& figures() const { return figures_; }
  // Of the model's file, as SetFigures::lean_file names it. Changes with the stamp.
  Hash file_id() const;
  void set_figures(const std::string& isa, const SetFigures& figures);
  bool is_verified() const { return is_verified_; }
  // Checks what load() took on trust; kDataLoss names the damaged matrix, kCancelled: `stop` was set.
  Status verify(const std::atomic<bool>& stop);
  // Writes what keep() was given, down to the disk, and closes the file; the file then takes the place of the memory
  // that was given, at the same address. kExhausted: disk or quota full; kCancelled: `stop` was set.
  Status store(const std::atomic<bool>& stop);

  // Where the kernel does not map the file in huge pages and nobody shares it: a private copy that is, at the same
  // address, for steps that else pay for page walks. Behind the service: it takes as long as reading the file.
  Status move_to_huge_pages(const std::atomic<bool>& stop);

  bool is_hit() const { return is_hit_; }
  bool is_huge() const { return is_huge_; }  // the mapped file is, mostly
  const std::string& miss_reason() const { return miss_reason_; }

 private:
  Result<MappedWeights> map_existing(const std::string& isa, const std::vector<PackedPlace>& places, size_t n_bytes,
                                     const std::function<Hash()>& model_hash);
  static Status write_all(int fd, const void* bytes, size_t size, const std::atomic<bool>& stop);

  Files files_;
  const std::string model_stamp_;
  bool is_hit_ = false, is_verified_ = false;
  // Of the mapped file: what each matrix must hash to.
  std::vector<uint64_t> checksums_;
  std::vector<uint32_t> choices_;  // by matrix, or empty
  SetFigures figures_;
  std::vector<PackedPlace> mapped_places_;
  const uint8_t* mapped_data_ = nullptr;
  size_t n_mapped_ = 0;
  bool is_huge_ = false;
  bool has_old_stamp_ = false;
  std::string miss_reason_;
  std::string isa_;
  std::vector<PackedPlace> places_;
  size_t n_bytes_ = 0;
  Hash model_hash_{};
  const uint8_t* data_ = nullptr;
};

}  // namespace tandem
