// Runs each op of a column beside the reference on small random data: `tandem doctor`, and a worker
// that wants to know that this processor computes what the tests saw elsewhere.
#pragma once

#include "kernels/kernel_table.h"

namespace tandem {

struct SelfCheckResult {
  char op[24];       // "matmul Q4_K", "attention", …
  double max_error;  // largest |column - reference|
  double bound;      // what rounding allows for that element (from epsilon, length and magnitudes)
  bool ok;           // every element within its bound, none NaN
};

constexpr int kSelfCheckOps = 32;             // room for every op
constexpr size_t kSelfCheckBytes = 1u << 20;  // workspace, 64-byte aligned, the caller's

// Fills results[0..n) and returns n. The element reported is the one nearest to (or furthest past)
// its bound.
int self_check(const KernelTable& table, uint8_t* workspace,
               SelfCheckResult results[kSelfCheckOps]);

}  // namespace tandem
