// Products of dense weights (F32, F16, BF16) by oneDNN, opened at run time: a worker runs without it. It knows machines
// that our kernels do not (AMX), but the order of its sums depends on shapes, so that it serves only where the operator
// gave up identical bits (cpu.deterministic = false), in steps of kRows tokens or more, and only shapes for which it
// measured faster than our own (dense_choice.h). No header of it is needed to build: what crosses the border is in the
// .cc, and tests/cpu/dense_library_abi_test.cc holds it against the header where that is installed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/kernel_table.h"

namespace tandem {

class DenseLibrary;

// One weight matrix in the library's own form, in slices of its rows. Immutable; multiply() from any thread.
class LibraryMatrix {
 public:
  static constexpr int64_t kRows = 64;  // tokens of a call
  ~LibraryMatrix();
  LibraryMatrix(const LibraryMatrix&) = delete;
  LibraryMatrix& operator=(const LibraryMatrix&) = delete;

  int n_slices() const;
  // The outputs of one slice for kRows tokens. x: [kRows][n_cols], row stride ldx; y: [kRows][n_rows], row stride n_rows.
  // ldx is what the matrix was made for.
  Status multiply(int slice, const float* x, float* y) const;

 private:
  friend class DenseLibrary;
  struct Impl;
  explicit LibraryMatrix(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Thread-safe, immutable.
class DenseLibrary {
 public:
  // The library of this process, opened at the first call: call it before the sandbox closes files. kUnavailable says
  // what is missing.
  static Result<const DenseLibrary*> open();
  static Result<std::unique_ptr<DenseLibrary>> open_file(const char* name);
  ~DenseLibrary();

  std::string name() const;                // "oneDNN 2.6.3"
  uint32_t version() const;                // 20603
  // kUnavailable: it has no product for this type here. On one thread; the copy takes copy_bytes().
  Result<std::unique_ptr<LibraryMatrix>> make(const PackedMatrix& w, const KernelTable& kernels, int64_t ldx) const;
  static int64_t copy_bytes(GgmlType type, int64_t n_rows, int64_t n_cols);  // 0: not a dense type

 private:
  struct Api;
  friend struct LibraryMatrix::Impl;
  explicit DenseLibrary(std::unique_ptr<Api> api);
  std::unique_ptr<Api> api_;
};

}  // namespace tandem
