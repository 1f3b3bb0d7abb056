#include "tests/kernels/random_matrix.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "kernels/quant_blocks.h"

namespace tandem {
namespace {

// Where the half-precision scales and the quants (zeroed: the block's minimum) lie in a block.
struct BlockFields {
  const char* type;
  int halfs[2];  // -1: none
  int quants_begin, quants_end;
  bool has_min;
};
constexpr BlockFields kFields[] = {
    {"Q4_0", {0, -1}, 2, 18, false},   {"Q4_1", {0, 2}, 4, 20, true},
    {"Q5_0", {0, -1}, 2, 22, false},   {"Q5_1", {0, 2}, 4, 24, true},
    {"Q8_0", {0, -1}, 2, 34, false},   {"Q2_K", {80, 82}, 16, 80, true},
    {"Q3_K", {108, -1}, 0, 96, false}, {"Q4_K", {0, 2}, 16, 144, true},
    {"Q5_K", {0, 2}, 16, 176, true},   {"Q6_K", {208, -1}, 0, 192, false},
    {"IQ4_NL", {0, -1}, 2, 18, false}, {"IQ4_XS", {0, -1}, 8, 136, false},
    {"MXFP4", {-1, -1}, 1, 17, false},
};

const BlockFields* fields_of(const std::string& type) {
  for (const BlockFields& f : kFields) {
    if (type == f.type) return &f;
  }
  return nullptr;
}

void set_quant_bytes(const BlockFields& f, int block_bytes, uint8_t fill, std::vector<uint8_t>* rows) {
  for (size_t at = 0; at < rows->size(); at += block_bytes) {
    memset(rows->data() + at + f.quants_begin, fill, f.quants_end - f.quants_begin);
  }
}

void derive_values(RandomMatrix* m) {
  const int64_t n = m->n_rows * m->n_cols;
  m->traits->dequantize_row(m->rows.data(), n, m->values.data());
  for (int64_t i = 0; i < n; ++i) m->magnitudes[i] = std::abs(m->values[i]);
  const BlockFields* f = fields_of(m->traits->name);
  if (!f || !f->has_min) return;
  std::vector<uint8_t> zeroed = m->rows;
  set_quant_bytes(*f, m->traits->block_bytes, 0, &zeroed);
  std::vector<float> mins(n);
  m->traits->dequantize_row(zeroed.data(), n, mins.data());
  for (int64_t i = 0; i < n; ++i) m->magnitudes[i] += 2 * std::abs(mins[i]);
}

}  // namespace

const char* const kMatmulTypes[16] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0",   "Q5_1",   "Q8_0",
                                      "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};

RandomMatrix random_matrix(const char* type, int64_t n_rows, int64_t n_cols, uint32_t seed) {
  RandomMatrix m;
  m.traits = quant_traits_by_name(type);
  m.n_rows = n_rows;
  m.n_cols = n_cols;
  const QuantTraits& t = *m.traits;
  const size_t n = static_cast<size_t>(n_rows * n_cols);
  m.rows.resize(n / t.block_size * t.block_bytes);
  m.values.resize(n);
  m.magnitudes.resize(n);
  std::mt19937 rng(seed);
  std::normal_distribution<float> scale(0, 0.05f);
  const BlockFields* f = fields_of(type);
  if (!f) {
    std::vector<float> x(n);
    for (float& v : x) v = scale(rng);
    t.quantize_row(x.data(), static_cast<int64_t>(n), m.rows.data());
  } else {
    for (uint8_t& b : m.rows) b = static_cast<uint8_t>(rng());
    for (size_t at = 0; at < m.rows.size(); at += t.block_bytes) {
      for (int offset : f->halfs) {
        const uint16_t h = float_to_half(scale(rng));
        if (offset >= 0) memcpy(m.rows.data() + at + offset, &h, 2);
      }
      if (f->halfs[0] < 0) m.rows[at] = static_cast<uint8_t>(110 + rng() % 20);  // MXFP4 exponent
    }
  }
  derive_values(&m);
  return m;
}

void fill_quants(RandomMatrix* m, uint8_t fill) {
  set_quant_bytes(*fields_of(m->traits->name), m->traits->block_bytes, fill, &m->rows);
  derive_values(m);
}

}  // namespace tandem
