// Scalar dequantizers of the types with 256 values a super-block: the definition of these formats.
#include <string.h>

#include "kernels/quant_blocks.h"
#include "kernels/quant_rows.h"
#include "kernels/quant_traits.h"

namespace tandem {
namespace {

template <typename Block>
Block block_at(const uint8_t* blocks, int64_t i) {
  Block b;
  memcpy(&b, blocks + i * static_cast<int64_t>(sizeof(Block)), sizeof(Block));
  return b;
}

}  // namespace

void scale_min_k4(const uint8_t scales[12], int j, uint8_t* scale, uint8_t* min) {
  if (j < 4) {
    *scale = scales[j] & 63;
    *min = scales[j + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((scales[j + 4] & 15) | ((scales[j - 4] >> 6) << 4));
    *min = static_cast<uint8_t>((scales[j + 4] >> 4) | ((scales[j] >> 6) << 4));
  }
}

int scale_k3(const uint8_t scales[12], int j) {
  const int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
  const int high = (scales[8 + j % 4] >> (2 * (j / 4))) & 3;
  return (low | (high << 4)) - 32;
}

int scale_iq4_xs(uint16_t scales_h, const uint8_t scales_l[4], int j) {
  const int low = (scales_l[j / 2] >> (4 * (j % 2))) & 15;
  return (low | (((scales_h >> (2 * j)) & 3) << 4)) - 32;
}

void dequantize_row_q2_k(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK_K; ++i, out += QK_K) {
    const auto b = block_at<block_q2_K>(blocks, i);
    const float d = half_to_float(b.d), dmin = half_to_float(b.dmin);
    for (int j = 0; j < QK_K; ++j) {
      const int half = j / 128, plane = j % 128 / 32;
      const int q = (b.qs[32 * half + j % 32] >> (2 * plane)) & 3;
      const uint8_t sc = b.scales[j / 16];
      const float scale = d * static_cast<float>(sc & 15), min = dmin * static_cast<float>(sc >> 4);
      out[j] = scale * static_cast<float>(q) - min;
    }
  }
}

void dequantize_row_q3_k(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK_K; ++i, out += QK_K) {
    const auto b = block_at<block_q3_K>(blocks, i);
    const float d = half_to_float(b.d);
    for (int j = 0; j < QK_K; ++j) {
      const int half = j / 128, plane = j % 128 / 32;
      const int low = (b.qs[32 * half + j % 32] >> (2 * plane)) & 3;
      const int minus = (b.hmask[j % 32] >> (4 * half + plane)) & 1 ? 0 : 4;
      const float scale = d * static_cast<float>(scale_k3(b.scales, j / 16));
      out[j] = scale * static_cast<float>(low - minus);
    }
  }
}

void dequantize_row_q4_k(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK_K; ++i) {
    const auto b = block_at<block_q4_K>(blocks, i);
    const float d = half_to_float(b.d), dmin = half_to_float(b.dmin);
    for (int j = 0; j < 8; ++j, out += 32) {
      uint8_t sc, m;
      scale_min_k4(b.scales, j, &sc, &m);
      const float scale = d * static_cast<float>(sc), min = dmin * static_cast<float>(m);
      const uint8_t* q = b.qs + 32 * (j / 2);
      for (int l = 0; l < 32; ++l) {
        const int v = j % 2 ? q[l] >> 4 : q[l] & 15;
        out[l] = scale * static_cast<float>(v) - min;
      }
    }
  }
}

void dequantize_row_q5_k(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK_K; ++i) {
    const auto b = block_at<block_q5_K>(blocks, i);
    const float d = half_to_float(b.d), dmin = half_to_float(b.dmin);
    for (int j = 0; j < 8; ++j, out += 32) {
      uint8_t sc, m;
      scale_min_k4(b.scales, j, &sc, &m);
      const float scale = d * static_cast<float>(sc), min = dmin * static_cast<float>(m);
      const uint8_t* q = b.qs + 32 * (j / 2);
      for (int l = 0; l < 32; ++l) {
        const int low = j % 2 ? q[l] >> 4 : q[l] & 15;
        const int v = low + 16 * ((b.qh[l] >> j) & 1);
        out[l] = scale * static_cast<float>(v) - min;
      }
    }
  }
}

void dequantize_row_q6_k(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK_K; ++i, out += QK_K) {
    const auto b = block_at<block_q6_K>(blocks, i);
    const float d = half_to_float(b.d);
    for (int j = 0; j < QK_K; ++j) {
      const int half = j / 128, plane = j % 128 / 32, l = j % 32;
      const uint8_t low = b.ql[64 * half + 32 * (plane % 2) + l];
      const int high = (b.qh[32 * half + l] >> (2 * plane)) & 3;
      const int q = ((plane < 2 ? low & 15 : low >> 4) | (high << 4)) - 32;
      out[j] = d * static_cast<float>(b.scales[j / 16]) * static_cast<float>(q);
    }
  }
}

void dequantize_row_q8_k(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK_K; ++i, out += QK_K) {
    const auto b = block_at<block_q8_K>(blocks, i);
    for (int j = 0; j < QK_K; ++j) out[j] = b.d * static_cast<float>(b.qs[j]);
  }
}

void dequantize_row_iq4_xs(const uint8_t* blocks, int64_t n, float* out) {
  for (int64_t i = 0; i < n / QK_K; ++i) {
    const auto b = block_at<block_iq4_xs>(blocks, i);
    const float d = half_to_float(b.d);
    for (int j = 0; j < 8; ++j, out += 32) {
      const float scale = d * static_cast<float>(scale_iq4_xs(b.scales_h, b.scales_l, j));
      const uint8_t* q = b.qs + 16 * j;
      for (int l = 0; l < 16; ++l) {
        out[l] = scale * static_cast<float>(kIq4Values[q[l] & 15]);
        out[l + 16] = scale * static_cast<float>(kIq4Values[q[l] >> 4]);
      }
    }
  }
}

}  // namespace tandem
