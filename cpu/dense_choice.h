// Which products of dense weights go to the library (dense_library.h): those whose shape it computes faster, measured
// once per model and machine and stored with the packed weights.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "cpu/dense_library.h"
#include "cpu/omp_team.h"
#include "kernels/kernel_table.h"

namespace tandem {

struct DenseSpeed {
  double own_flops_per_s = 0, library_flops_per_s = 0;
  // By a margin above what two measurements differ by: the copy costs memory.
  bool library_wins() const { return library_flops_per_s > 1.05 * own_flops_per_s; }
};
// Both on steps of 128 tokens, with all threads of the team.
Result<DenseSpeed> measure_dense(const DenseLibrary& library, const PackedMatrix& w, const KernelTable& kernels,
                                 OmpTeam* team);

// Floats between two rows of float activations of n_cols: an odd number of cache lines, as a power of two would put all
// rows into one cache set.
constexpr int64_t float_act_stride(int64_t n_cols) { return ((n_cols + 15) / 16 | 1) * 16; }

// By the address of the packed matrix; empty where nothing goes to the library.
using LibraryMatrices = std::unordered_map<const uint8_t*, std::unique_ptr<LibraryMatrix>>;

// The matrices the library shall serve. `choices` (one a matrix, 0: none made) are as stored; those of another version
// of the library are made again. *choices is what to store then.
Result<LibraryMatrices> choose_dense(const DenseLibrary& library, const std::vector<const PackedMatrix*>& matrices,
                                     const KernelTable& kernels, OmpTeam* team, std::vector<uint32_t>* choices);

}  // namespace tandem
