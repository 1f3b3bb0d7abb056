#include "kernels/random_blocks.h"

#include <string.h>

namespace tandem {
namespace {

struct BlockFields {
  GgmlType type;
  int halfs[2];  // offsets of half-precision scales and minimums; -1: none
  int quants_begin, quants_end;
  bool has_min;
};
constexpr BlockFields kFields[] = {
    {GgmlType::kQ4_0, {0, -1}, 2, 18, false},   {GgmlType::kQ4_1, {0, 2}, 4, 20, true},
    {GgmlType::kQ5_0, {0, -1}, 2, 22, false},   {GgmlType::kQ5_1, {0, 2}, 4, 24, true},
    {GgmlType::kQ8_0, {0, -1}, 2, 34, false},   {GgmlType::kQ2_K, {80, 82}, 16, 80, true},
    {GgmlType::kQ3_K, {108, -1}, 0, 96, false}, {GgmlType::kQ4_K, {0, 2}, 16, 144, true},
    {GgmlType::kQ5_K, {0, 2}, 16, 176, true},   {GgmlType::kQ6_K, {208, -1}, 0, 192, false},
    {GgmlType::kIQ4_NL, {0, -1}, 2, 18, false}, {GgmlType::kIQ4_XS, {0, -1}, 8, 136, false},
    {GgmlType::kMXFP4, {-1, -1}, 1, 17, false}, {GgmlType::kQ8_0Nested, {0, -1}, 2, 34, false},
    {GgmlType::kQ8_0Lean, {0, -1}, 2, 34, true},
};

const BlockFields* fields_of(GgmlType type) {
  for (const BlockFields& f : kFields) {
    if (f.type == type) return &f;
  }
  return nullptr;
}

uint32_t next_random(uint32_t* state) {  // xorshift32 (Marsaglia 2003)
  *state ^= *state << 13;
  *state ^= *state >> 17;
  return *state ^= *state << 5;
}

// Near normal, deviation 0.05: a sum of four uniform numbers.
float small_random(uint32_t* state) {
  float sum = 0;
  for (int i = 0; i < 4; ++i)
    sum += static_cast<float>(next_random(state) >> 8) / 16777216.0f - 0.5f;
  return sum * 0.0866f;
}

}  // namespace

void fill_random_blocks(const QuantTraits& t, int64_t n_blocks, uint32_t seed, uint8_t* blocks) {
  uint32_t state = seed * 2654435761u + 1;
  const BlockFields* f = fields_of(t.type);
  for (int64_t i = 0; i < n_blocks; ++i, blocks += t.block_bytes) {
    if (!f) {
      const float value = small_random(&state);
      t.quantize_row(&value, 1, blocks);
      continue;
    }
    for (int j = 0; j < t.block_bytes; ++j)
      blocks[j] = static_cast<uint8_t>(next_random(&state) >> 11);
    for (int offset : f->halfs) {
      const uint16_t half = float_to_half(small_random(&state));
      if (offset >= 0) memcpy(blocks + offset, &half, sizeof half);
    }
    if (t.type == GgmlType::kMXFP4)
      blocks[0] = static_cast<uint8_t>(110 + next_random(&state) % 20);
  }
}

bool set_quant_bytes(const QuantTraits& t, int64_t n_blocks, uint8_t fill, uint8_t* blocks) {
  const BlockFields* f = fields_of(t.type);
  if (!f) return false;
  for (int64_t i = 0; i < n_blocks; ++i, blocks += t.block_bytes) {
    memset(blocks + f->quants_begin, fill, static_cast<size_t>(f->quants_end - f->quants_begin));
  }
  return true;
}

bool has_minimum(const QuantTraits& t) {
  const BlockFields* f = fields_of(t.type);
  return f && f->has_min;
}

}  // namespace tandem
