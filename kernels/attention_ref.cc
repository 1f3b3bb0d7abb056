// Reference of attention over pages: online softmax in double precision, one key after the other;
// the parts of a row (kernel_table.h) are kept as floats and joined in double precision.
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
  const uint8_t* scales = base + static_cast<int64_t>(l.head_dim) * l.page_size;
  const float scale =
      half_to_float(half_at(scales, static_cast<int64_t>(d / 32) * l.page_size + slot));
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

// The record of one row's keys in `part`: sum 0 if it sees none.
void attend_part(const AttentionParams& p, int kv_head, int pos, int part, const float* q,
                 float* record, double* acc) {
  const KvLayout& l = p.layout;
  for (int d = 0; d < l.head_dim; ++d) acc[d] = 0;
  double max = -INFINITY, sum = 0;
  const int begin = part * kAttentionPartKeys, first = first_visible_key(pos, p.window);
  for (int key = first > begin ? first : begin; key <= pos && key < begin + kAttentionPartKeys;
       ++key) {
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
    score *= M_LOG2E;
    const double new_max = score > max ? score : max;
    const double shrink = exp2(max - new_max), weight = exp2(score - new_max);
    max = new_max;
    sum = sum * shrink + weight;
    for (int d = 0; d < l.head_dim; ++d) {
      acc[d] = acc[d] * shrink + weight * static_cast<double>(v_value(l, v, slot, d));
    }
  }
  for (int d = 0; d < l.head_dim; ++d) record[d] = static_cast<float>(acc[d]);
  record[l.head_dim] = static_cast<float>(max);
  record[l.head_dim + 1] = static_cast<float>(sum);
}

// What the parts of a row have given so far.
struct Joined {
  double* acc;
  double max, sum;
};

void join(Joined* total, const float* record, int head_dim) {
  const double part_max = static_cast<double>(record[head_dim]);
  const double part_sum = static_cast<double>(record[head_dim + 1]);
  if (part_sum == 0) return;
  const double max = part_max > total->max ? part_max : total->max;
  const double a = exp2(total->max - max), b = exp2(part_max - max);
  for (int d = 0; d < head_dim; ++d) {
    total->acc[d] = total->acc[d] * a + static_cast<double>(record[d]) * b;
  }
  total->max = max;
  total->sum = total->sum * a + part_sum * b;
}

// scratch of a call: double acc[head_dim], double total[head_dim], one record.
Joined start_join(int head_dim, uint8_t* scratch) {
  double* total = reinterpret_cast<double*>(scratch) + head_dim;
  for (int d = 0; d < head_dim; ++d) total[d] = 0;
  return {total, -INFINITY, 0};
}

void store_joined(const Joined& total, int head_dim, float* out) {
  for (int d = 0; d < head_dim; ++d) out[d] = static_cast<float>(total.acc[d] / total.sum);
}

}  // namespace

size_t kv_layer_bytes(const KvLayout& layout) {
  const size_t bytes = 2 * static_cast<size_t>(layout.n_kv_heads) * kv_head_bytes(layout);
  return (bytes + 63) / 64 * 64;
}

void kv_append(const KvLayout& l, uint8_t* page, int slot, const float* k, const float* v) {
  const int64_t P = l.page_size, D = l.head_dim;
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
      put_q8(v, l.head_dim, vb + slot * D, 1, vb + D * P + 2 * slot, P);
    }
  }
}

size_t attention_scratch_bytes(const AttentionParams& p, int) {
  return 2 * static_cast<size_t>(p.layout.head_dim) * sizeof(double) +
         static_cast<size_t>(attention_record_floats(p.layout.head_dim)) * sizeof(float);
}

void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end,
               uint8_t* scratch) {
  const int head_dim = p.layout.head_dim, group = p.n_heads / p.layout.n_kv_heads;
  double* acc = reinterpret_cast<double*>(scratch);
  float* record = reinterpret_cast<float*>(acc + 2 * head_dim);
  for (int t = token_begin; t < token_end; ++t) {
    const int pos = p.first_pos + t;
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const int64_t offset = static_cast<int64_t>(h) * head_dim;
      Joined total = start_join(head_dim, scratch);
      for (int part = first_visible_key(pos, p.window) / kAttentionPartKeys;
           part <= pos / kAttentionPartKeys; ++part) {
        attend_part(p, kv_head, pos, part, p.q + t * p.q_stride + offset, record, acc);
        join(&total, record, head_dim);
      }
      store_joined(total, head_dim, p.out + t * p.out_stride + offset);
    }
  }
}

void attention_parts(const AttentionParams& p, int kv_head, int token_begin, int token_end,
                     int part_begin, int part_end, float* records, int64_t stride,
                     uint8_t* scratch) {
  const int head_dim = p.layout.head_dim, group = p.n_heads / p.layout.n_kv_heads;
  double* acc = reinterpret_cast<double*>(scratch);
  for (int part = part_begin; part < part_end; ++part, records += stride) {
    float* record = records;
    for (int t = token_begin; t < token_end; ++t) {
      for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        const float* q = p.q + t * p.q_stride + static_cast<int64_t>(h) * head_dim;
        attend_part(p, kv_head, p.first_pos + t, part, q, record, acc);
        record += attention_record_floats(head_dim);
      }
    }
  }
}

void attention_join(const KvLayout& layout, const float* records, int n_parts, int64_t stride,
                    float* out, uint8_t* scratch) {
  Joined total = start_join(layout.head_dim, scratch);
  for (int i = 0; i < n_parts; ++i) join(&total, records + i * stride, layout.head_dim);
  store_joined(total, layout.head_dim, out);
}

}  // namespace tandem::ref
