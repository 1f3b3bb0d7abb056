// Which column of the kernel table this run tests: TANDEM_FORCE_ISA names it, else the best this
// CPU has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"

namespace tandem {

// nullptr when this CPU lacks the forced column (the test program then says SKIPPED with the
// reason).
const KernelTable* tested_column();
std::string tested_column_missing();  // the features this CPU lacks, or empty

// 64-byte aligned bytes.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t n) : storage_(n + 64, 0) {
    const auto at = reinterpret_cast<uintptr_t>(storage_.data());
    data_ = storage_.data() + (64 - at % 64) % 64;
  }
  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;

 private:
  std::vector<uint8_t> storage_;
  uint8_t* data_;
};

constexpr double kEps = 5.9604644775390625e-8;  // 2^-24: relative error of one rounding

std::vector<float> random_floats(size_t n, float sigma, uint32_t seed);

// The largest |got - want| / bound seen; CHECKed to stay below 1 and printed with its place.
class WorstError {
 public:
  explicit WorstError(std::string what) : what_(std::move(what)) {}
  void add(double got, double want, double bound, int64_t place);
  void check() const;

 private:
  std::string what_;
  double worst_ = 0, got_ = 0, want_ = 0;
  int64_t place_ = -1;
  bool has_nan_ = false;
};

}  // namespace tandem
