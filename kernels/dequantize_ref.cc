// Scalar dequantizers of the types with 1 or 32 values a block: the definition of these formats.
#include <string.h>

#include "kernels/quant_blocks.h"
#include "kernels/quant_rows.h"
#include "kernels/quant_traits.h"
#include "kernels/tile_layout.h"

namespace tandem {
namespace {

template <typename Block>
Block block_at(const uint8_t* blocks, int64_t i) {
  Block b;
  memcpy(&b, blocks + i * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
  return b;
}

uint16_t half_at(const uint8_t* p, int64_t i) {
  uint16_t h;
  memcpy(&h, p + 2 * i, sizeof h);
  return h;
}

// Fifth bit of value i, in place (0 or 16).
int high_bit(const uint8_t qh[4], int i) { return ((qh[i / 8] >> (i % 8)) & 1) << 4; }

}  // namespace

void nested_block(const uint8_t* block, NestedBlock* out) {
  const auto b = block_at<block_q8_0>(block, 0);
  int lowest = 127, highest = -128;
  for (const int8_t q : b.qs) {
    lowest = q < lowest ? q : lowest;
    highest = q > highest ? q : highest;
  }
  const int sign = highest > -lowest ? -1 : 1;
  out->d = sign < 0 ? static_cast<uint16_t>(b.d ^ 0x8000) : b.d;
  out->is_raised = (sign < 0 ? -lowest : highest) >= kNestedOffset - 16;
  const int offset = out->is_raised ? kRaisedOffset : kNestedOffset;
  for (int i = 0; i < QK; ++i) out->q[i] = static_cast<uint8_t>(sign * b.qs[i] + offset);
}

void dequantize_row_q8_0_lean(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    NestedBlock b;
    nested_block(blocks + i * static_cast<int64_t>(sizeof(block_q8_0)), &b);
    const float d = half_to_float(b.d), min = b.is_raised ? kLeanRaisedMin : 0;
    for (int j = 0; j < QK; ++j) out[j] = d * (kLeanScale * static_cast<float>((b.q[j] >> 4) - 8) + min);
  }
}

void dequantize_row_f32(const uint8_t* blocks, int64_t n, float* out) {
  memcpy(out, blocks, static_cast<size_t>(n) * sizeof(float));
}

void dequantize_row_f16(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(half_at(blocks, i));
}

void dequantize_row_bf16(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(half_at(blocks, i));
}

void dequantize_row_q4_0(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    const auto b = block_at<block_q4_0>(blocks, i);
    const float d = half_to_float(b.d);
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>((b.qs[j] & 15) - 8) * d;
      out[j + 16] = static_cast<float>((b.qs[j] >> 4) - 8) * d;
    }
  }
}

void dequantize_row_q4_1(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    const auto b = block_at<block_q4_1>(blocks, i);
    const float d = half_to_float(b.d), m = half_to_float(b.m);
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>(b.qs[j] & 15) * d + m;
      out[j + 16] = static_cast<float>(b.qs[j] >> 4) * d + m;
    }
  }
}

void dequantize_row_q5_0(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    const auto b = block_at<block_q5_0>(blocks, i);
    const float d = half_to_float(b.d);
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>(((b.qs[j] & 15) | high_bit(b.qh, j)) - 16) * d;
      out[j + 16] = static_cast<float>(((b.qs[j] >> 4) | high_bit(b.qh, j + 16)) - 16) * d;
    }
  }
}

void dequantize_row_q5_1(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    const auto b = block_at<block_q5_1>(blocks, i);
    const float d = half_to_float(b.d), m = half_to_float(b.m);
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>((b.qs[j] & 15) | high_bit(b.qh, j)) * d + m;
      out[j + 16] = static_cast<float>((b.qs[j] >> 4) | high_bit(b.qh, j + 16)) * d + m;
    }
  }
}

void dequantize_row_q8_0(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    const auto b = block_at<block_q8_0>(blocks, i);
    const float d = half_to_float(b.d);
    for (int j = 0; j < QK; ++j) out[j] = static_cast<float>(b.qs[j]) * d;
  }
}

void dequantize_row_iq4_nl(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    const auto b = block_at<block_iq4_nl>(blocks, i);
    const float d = half_to_float(b.d);
    for (int j = 0; j < 16; ++j) {
      out[j] = d * static_cast<float>(kIq4Values[b.qs[j] & 15]);
      out[j + 16] = d * static_cast<float>(kIq4Values[b.qs[j] >> 4]);
    }
  }
}

float mxfp4_scale(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

void dequantize_row_mxfp4(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK; ++i, out += QK) {
    const auto b = block_at<block_mxfp4>(blocks, i);
    const float d = mxfp4_scale(b.e);
    for (int j = 0; j < 16; ++j) {
      out[j] = static_cast<float>(kMxfp4Values[b.qs[j] & 15]) * d;
      out[j + 16] = static_cast<float>(kMxfp4Values[b.qs[j] >> 4]) * d;
    }
  }
}

}  // namespace tandem
