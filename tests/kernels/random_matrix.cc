#include "tests/kernels/random_matrix.h"

#include <cmath>

#include "kernels/random_blocks.h"

namespace tandem {
namespace {

void derive_values(RandomMatrix* m) {
  const int64_t n = m->n_rows * m->n_cols, n_blocks = n / m->traits->block_size;
  m->traits->dequantize_row(m->rows.data(), n, m->values.data());
  for (int64_t i = 0; i < n; ++i) m->magnitudes[i] = std::abs(m->values[i]);
  if (!has_minimum(*m->traits)) return;
  std::vector<uint8_t> zeroed = m->rows;
  set_quant_bytes(*m->traits, n_blocks, 0, zeroed.data());
  std::vector<float> mins(n);
  m->traits->dequantize_row(zeroed.data(), n, mins.data());
  for (int64_t i = 0; i < n; ++i) m->magnitudes[i] += 2 * std::abs(mins[i]);
}

}  // namespace

const char* const kColumnTypes[18] = {"F32",  "F16",    "BF16",   "Q4_0",  "Q4_1",        "Q5_0",
                                      "Q5_1", "Q8_0",   "Q2_K",   "Q3_K",  "Q4_K",        "Q5_K",
                                      "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "Q8_0 nested", "Q8_0 lean"};

RandomMatrix random_matrix(const char* type, int64_t n_rows, int64_t n_cols, uint32_t seed) {
  RandomMatrix m;
  m.traits = quant_traits_by_name(type);
  m.n_rows = n_rows;
  m.n_cols = n_cols;
  const int64_t n = n_rows * n_cols, n_blocks = n / m.traits->block_size;
  m.rows.resize(n_blocks * m.traits->block_bytes);
  m.values.resize(n);
  m.magnitudes.resize(n);
  fill_random_blocks(*m.traits, n_blocks, seed, m.rows.data());
  derive_values(&m);
  return m;
}

void fill_quants(RandomMatrix* m, uint8_t fill) {
  set_quant_bytes(*m->traits, m->n_rows * m->n_cols / m->traits->block_size, fill, m->rows.data());
  derive_values(m);
}

}  // namespace tandem
