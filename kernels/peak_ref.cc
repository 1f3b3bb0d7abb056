// What plain compiled code reaches on this machine.
#include <string.h>

#include "kernels/columns.h"

namespace tandem::ref {

int64_t peak_int8(int64_t iterations, int32_t* sink) {
  constexpr int kValues = 256;
  int8_t a[kValues], b[kValues];
  for (int i = 0; i < kValues; ++i) {
    a[i] = static_cast<int8_t>(i);
    b[i] = static_cast<int8_t>(3 * i);
  }
  int32_t sum = 0;
  for (int64_t n = 0; n < iterations; ++n) {
    a[n % kValues] = static_cast<int8_t>(n);
    for (int i = 0; i < kValues; ++i) sum += a[i] * b[i];
    sum &= 0xffff;  // never overflows: 256 products of at most 2^14
  }
  *sink = sum;
  return iterations * kValues * 2;
}

uint64_t peak_read(const uint8_t* data, size_t bytes) {
  uint64_t sums[8] = {};
  for (size_t at = 0; at < bytes; at += 64) {
    uint64_t line[8];
    memcpy(line, data + at, sizeof line);
    for (int i = 0; i < 8; ++i) sums[i] ^= line[i];
  }
  uint64_t all = 0;
  for (uint64_t s : sums) all ^= s;
  return all;
}

}  // namespace tandem::ref
