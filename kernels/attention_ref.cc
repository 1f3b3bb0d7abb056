// Reference of attention over pages: online softmax in double precision, one key after the other.
#include <math.h>
#include <string.h>

#include "kernels/columns.h"
#include "kernels/kv_layout.h"

namespace tandem::ref {
namespace {

uint16_t half_at(const uint8_t* p, int64_t i) {
  uint16_t h;
  memcpy(&h, p + 2 * i, sizeof h);
  return h;
}

float float_at(const uint8_t* p, int64_t i) {
  float f;
  memcpy(&f, p + 4 * i, sizeof f);
  return f;
}

void put_float(uint8_t* p, int64_t i, float f) { memcpy(p + 4 * i, &f, sizeof f); }

void put_half(uint8_t* p, int64_t i, uint16_t h) { memcpy(p + 2 * i, &h, sizeof h); }

// Element d of the K (or V) of one head in slot `slot`; base points to that head's K (or V).
float k_value(const KvLayout& l, const uint8_t* base, int slot, int d) {
  const int64_t i = static_cast<int64_t>(d) * l.page_size + slot;
  if (l.type == KvType::kF16) return half_to_float(half_at(base, i));
  if (l.type == KvType::kF32) return float_at(base, i);
  const uint8_t* scales = base + static_cast<int64_t>(l.head_dim) * l.page_size;
  const float scale =
      half_to_float(half_at(scales, static_cast<int64_t>(d / 32) * l.page_size + slot));
  return scale * static_cast<float>(static_cast<int8_t>(base[i]));
}

float v_value(const KvLayout& l, const uint8_t* base, int slot, int d) {
  const int64_t i = static_cast<int64_t>(slot) * l.head_dim + d;
  if (l.type == KvType::kF16) return half_to_float(half_at(base, i));
  if (l.type == KvType::kF32) return float_at(base, i);
  const int n_blocks = (l.head_dim + 31) / 32;
  const uint8_t* scales = base + static_cast<int64_t>(l.head_dim) * l.page_size;
  const float scale =
      half_to_float(half_at(scales, static_cast<int64_t>(slot) * n_blocks + d / 32));
  return scale * static_cast<float>(static_cast<int8_t>(base[i]));
}

// Stores `x` (head_dim values): element d at values + d * stride, scale of block b at scales[b *
// s_stride].
void put_q8(const float* x, int head_dim, uint8_t* values, int64_t stride, uint8_t* scales,
            int64_t s_stride) {
  for (int begin = 0; begin < head_dim; begin += 32) {
    const int end = begin + 32 < head_dim ? begin + 32 : head_dim;
    float amax = 0;
    for (int d = begin; d < end; ++d) amax = fabsf(x[d]) > amax ? fabsf(x[d]) : amax;
    const uint16_t scale = float_to_half(amax / 127.0f);
    const float stored = half_to_float(scale);
    const float inverse = stored > 0 && isfinite(stored) ? 1.0f / stored : 0.0f;
    for (int d = begin; d < end; ++d) {
      float q = nearbyintf(x[d] * inverse);
      q = q > 127.0f ? 127.0f : q > -127.0f ? q : -127.0f;
      values[d * stride] = static_cast<uint8_t>(static_cast<int8_t>(q));
    }
    put_half(scales, begin / 32 * s_stride, scale);
  }
}

void attend_row(const AttentionParams& p, int kv_head, int pos, const float* q, float* out,
                double* acc) {
  const KvLayout& l = p.layout;
  for (int d = 0; d < l.head_dim; ++d) acc[d] = 0;
  double max = -INFINITY, sum = 0;
  for (int key = first_visible_key(pos, p.window); key <= pos; ++key) {
    const uint8_t* page =
        p.pool + static_cast<size_t>(p.page_table[key / l.page_size]) * l.page_bytes;
    const uint8_t* k = page + kv_k_offset(l, kv_head);
    const uint8_t* v = page + kv_v_offset(l, kv_head);
    const int slot = key % l.page_size;
    double score = 0;
    for (int d = 0; d < l.head_dim; ++d) {
      score += static_cast<double>(q[d]) * static_cast<double>(k_value(l, k, slot, d));
    }
    score *= static_cast<double>(p.scale);
    const double cap = static_cast<double>(p.softcap);
    if (cap > 0) score = cap * tanh(score / cap);
    const double new_max = score > max ? score : max;
    const double shrink = exp(max - new_max), weight = exp(score - new_max);
    max = new_max;
    sum = sum * shrink + weight;
    for (int d = 0; d < l.head_dim; ++d) {
      acc[d] = acc[d] * shrink + weight * static_cast<double>(v_value(l, v, slot, d));
    }
  }
  for (int d = 0; d < l.head_dim; ++d) out[d] = static_cast<float>(acc[d] / sum);
}

}  // namespace

size_t kv_layer_bytes(const KvLayout& layout) {
  const size_t bytes = 2 * static_cast<size_t>(layout.n_kv_heads) * kv_head_bytes(layout);
  return (bytes + 63) / 64 * 64;
}

void kv_append(const KvLayout& l, uint8_t* page, int slot, const float* k, const float* v) {
  const int64_t P = l.page_size, D = l.head_dim, n_blocks = (D + 31) / 32;
  for (int h = 0; h < l.n_kv_heads; ++h, k += D, v += D) {
    uint8_t* kb = page + kv_k_offset(l, h);
    uint8_t* vb = page + kv_v_offset(l, h);
    if (l.type == KvType::kF16) {
      for (int64_t d = 0; d < D; ++d) {
        put_half(kb, d * P + slot, float_to_half(k[d]));
        put_half(vb, slot * D + d, float_to_half(v[d]));
      }
    } else if (l.type == KvType::kF32) {
      for (int64_t d = 0; d < D; ++d) {
        put_float(kb, d * P + slot, k[d]);
        put_float(vb, slot * D + d, v[d]);
      }
    } else {
      put_q8(k, l.head_dim, kb + slot, P, kb + D * P + 2 * slot, P);
      put_q8(v, l.head_dim, vb + slot * D, 1, vb + D * P + 2 * slot * n_blocks, 1);
    }
  }
}

size_t attention_scratch_bytes(const AttentionParams& p, int) {
  return static_cast<size_t>(p.layout.head_dim) * sizeof(double);
}

void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end,
               uint8_t* scratch) {
  double* acc = reinterpret_cast<double*>(scratch);
  const int group = p.n_heads / p.layout.n_kv_heads;
  for (int t = token_begin; t < token_end; ++t) {
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const int64_t offset = static_cast<int64_t>(h) * p.layout.head_dim;
      attend_row(p, kv_head, p.first_pos + t, p.q + t * p.q_stride + offset,
                 p.out + t * p.out_stride + offset, acc);
    }
  }
}

}  // namespace tandem::ref
