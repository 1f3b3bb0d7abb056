// Attention over pages, once for all vector columns: attention_<isa>.cc includes its simd_<isa>.h, then
// this. For each page in ascending order: K and V to floats once for all rows of
// the block, then for every query row a vector of scores at a time (one fma chain over head_dim), one online softmax
// update, and one fma a slot into the output row. A row does these operations for exactly the pages and
// slots it sees, so its result does not depend on its neighbours.
// Served here: head_dim and page_size multiples of 16; everything else goes to the reference.
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/columns.h"
#include "kernels/kv_layout.h"
#include "kernels/simd_math.h"

namespace tandem {
namespace {
namespace paged {

using simd::kLanes;
using simd::Vec;

constexpr int kRowsAtOnce = 32;  // query rows (token, head) that share a converted page: 8 KB of states
constexpr int kMaxPage = 64;

bool is_served(const KvLayout& l) {
  return l.head_dim % 16 == 0 && l.page_size % 16 == 0 && l.page_size <= kMaxPage;
}

int group_of(const AttentionParams& p) { return p.n_heads / p.layout.n_kv_heads; }

int tokens_at_once(const AttentionParams& p) {
  const int group = group_of(p);
  return group >= kRowsAtOnce ? 1 : kRowsAtOnce / group;
}

// The scratch of one call, carved from the caller's bytes.
struct Scratch {
  float* k;    // [head_dim][page_size]
  float* v;    // [page_size][head_dim]
  float* acc;  // [rows][head_dim]
  float* max;  // [rows]
  float* sum;  // [rows]
};

Scratch carve(const AttentionParams& p, uint8_t* bytes) {
  const int64_t page = int64_t{p.layout.head_dim} * p.layout.page_size;
  const int64_t rows = int64_t{tokens_at_once(p)} * group_of(p);
  Scratch s;
  s.k = reinterpret_cast<float*>(bytes);
  s.v = s.k + page;
  s.acc = s.v + page;
  s.max = s.acc + rows * p.layout.head_dim;
  s.sum = s.max + rows;
  return s;
}

void halfs_to_floats(const uint8_t* src, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) simd::store(out + i, simd::load_half(src + 2 * i));
}

void k_from_q8(const KvLayout& l, const uint8_t* src, float* out) {
  const int64_t P = l.page_size, D = l.head_dim;
  const uint8_t* scales = src + D * P;
  for (int64_t d = 0; d < D; ++d) {
    for (int64_t slot = 0; slot < P; slot += kLanes) {
      const Vec scale = simd::load_half(scales + 2 * (d / 32 * P + slot));
      simd::store(out + d * P + slot, simd::mul(scale, simd::load_int8(src + d * P + slot)));
    }
  }
}

void v_from_q8(const KvLayout& l, const uint8_t* src, float* out) {
  const int64_t P = l.page_size, D = l.head_dim, n_blocks = (D + 31) / 32;
  const uint8_t* scales = src + D * P;
  for (int64_t slot = 0; slot < P; ++slot) {
    for (int64_t d = 0; d < D; d += kLanes) {
      uint16_t scale;
      memcpy(&scale, scales + 2 * (slot * n_blocks + d / 32), sizeof scale);
      const Vec s = simd::splat(half_to_float(scale));
      simd::store(out + slot * D + d, simd::mul(s, simd::load_int8(src + slot * D + d)));
    }
  }
}

void load_page(const AttentionParams& p, int kv_head, int page_index, const Scratch& s) {
  const KvLayout& l = p.layout;
  const uint8_t* page = p.pool + static_cast<size_t>(p.page_table[page_index]) * l.page_bytes;
  const uint8_t* k = page + kv_k_offset(l, kv_head);
  const uint8_t* v = page + kv_v_offset(l, kv_head);
  if (l.type == KvType::kF16) {
    halfs_to_floats(k, int64_t{l.head_dim} * l.page_size, s.k);
    halfs_to_floats(v, int64_t{l.head_dim} * l.page_size, s.v);
  } else {
    k_from_q8(l, k, s.k);
    v_from_q8(l, v, s.v);
  }
}

// q·k of kRows rows with the page's slots: scores [kRows][kMaxPage].
template <int kRows>
void score(const float* const* q, const float* k, int head_dim, int page_size, float (*scores)[kMaxPage]) {
  for (int slot = 0; slot < page_size; slot += kLanes) {
    Vec acc[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) acc[r] = simd::zero();
    const float* column = k + slot;
    for (int d = 0; d < head_dim; ++d, column += page_size) {
      const Vec keys = simd::load(column);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[r] = simd::fma(keys, simd::splat(q[r][d]), acc[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) simd::store(scores[r] + slot, acc[r]);
  }
}

// Scores to weights e^(score - new max) in place; slots outside [begin, end) become 0. Updates the row's
// maximum and sum and returns what the row's earlier sums shrink by.
float softmax_step(const AttentionParams& p, float* scores, int begin, int end, float* max, float* sum) {
  const int page_size = p.layout.page_size;
  Vec high = simd::splat(-INFINITY);
  for (int slot = 0; slot < page_size; slot += kLanes) {
    Vec s = simd::mul(simd::load(scores + slot), simd::splat(p.scale));
    if (p.softcap > 0) {
      const Vec cap = simd::splat(p.softcap);
      s = simd::mul(cap, simd::tanh(simd::div(s, cap)));
    }
    s = simd::keep(s, begin - slot, end - slot, -INFINITY);
    simd::store(scores + slot, s);
    high = simd::max(high, s);
  }
  const float page_max = simd::largest(high);
  const float new_max = page_max > *max ? page_max : *max;
  Vec total = simd::zero();
  for (int slot = 0; slot < page_size; slot += kLanes) {
    const Vec w = simd::exp(simd::sub(simd::load(scores + slot), simd::splat(new_max)));
    simd::store(scores + slot, w);
    total = simd::add(total, w);
  }
  const float shrink = simd::first_lane(simd::exp(simd::splat(*max - new_max)));
  *max = new_max;
  *sum = *sum * shrink + simd::sum(total);
  return shrink;
}

// acc[0, kLanes * kVectors) = acc * shrink + sum over slots of weight * v.
template <int kVectors>
void add_values(const float* weights, int begin, int end, float shrink, const float* v, int head_dim,
                float* acc) {
  Vec a[kVectors];
  const Vec s = simd::splat(shrink);
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) a[j] = simd::mul(simd::load(acc + kLanes * j), s);
  for (int slot = begin; slot < end; ++slot) {
    const Vec w = simd::splat(weights[slot]);
    const float* row = v + static_cast<int64_t>(slot) * head_dim;
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) a[j] = simd::fma(w, simd::load(row + kLanes * j), a[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) simd::store(acc + kLanes * j, a[j]);
}

void add_all_values(const float* weights, int begin, int end, float shrink, const float* v, int head_dim,
                    float* acc) {
  int d = 0;
  for (; head_dim - d >= 8 * kLanes; d += 8 * kLanes) {
    add_values<8>(weights, begin, end, shrink, v + d, head_dim, acc + d);
  }
  for (; head_dim - d >= 4 * kLanes; d += 4 * kLanes) {
    add_values<4>(weights, begin, end, shrink, v + d, head_dim, acc + d);
  }
  for (; d < head_dim; d += kLanes) {
    add_values<1>(weights, begin, end, shrink, v + d, head_dim, acc + d);
  }
}

// One block of rows: row r is token token_begin + r / group, head kv_head * group + r % group.
struct RowBlock {
  const AttentionParams& p;
  int kv_head;
  int token_begin;
  int n_rows;
  Scratch s;

  int pos(int r) const { return p.first_pos + token_begin + r / group_of(p); }
  int64_t offset(int r, int64_t stride) const {
    const int group = group_of(p), head = kv_head * group + r % group;
    return (token_begin + r / group) * stride + int64_t{head} * p.layout.head_dim;
  }
};

void attend_rows(const RowBlock& b, int page_index, int first_row, int n) {
  const AttentionParams& p = b.p;
  const int page_size = p.layout.page_size, head_dim = p.layout.head_dim;
  const float* q[4];
  for (int i = 0; i < 4; ++i) q[i] = p.q + b.offset(first_row + (i < n ? i : 0), p.q_stride);
  alignas(64) float scores[4][kMaxPage];
  if (n == 4) score<4>(q, b.s.k, head_dim, page_size, scores);
  if (n == 3) score<3>(q, b.s.k, head_dim, page_size, scores);
  if (n == 2) score<2>(q, b.s.k, head_dim, page_size, scores);
  if (n == 1) score<1>(q, b.s.k, head_dim, page_size, scores);
  for (int i = 0; i < n; ++i) {
    const int r = first_row + i, pos = b.pos(r), page_begin = page_index * page_size;
    const int first = first_visible_key(pos, p.window) - page_begin, last = pos - page_begin;
    const int begin = first > 0 ? first : 0, end = last < page_size ? last + 1 : page_size;
    if (begin >= end) continue;
    const float shrink = softmax_step(p, scores[i], begin, end, b.s.max + r, b.s.sum + r);
    add_all_values(scores[i], begin, end, shrink, b.s.v, head_dim, b.s.acc + int64_t{r} * head_dim);
  }
}

void attend_block(const RowBlock& b) {
  const AttentionParams& p = b.p;
  const int head_dim = p.layout.head_dim, page_size = p.layout.page_size;
  memset(b.s.acc, 0, static_cast<size_t>(b.n_rows) * static_cast<size_t>(head_dim) * sizeof(float));
  for (int r = 0; r < b.n_rows; ++r) {
    b.s.max[r] = -INFINITY;
    b.s.sum[r] = 0;
  }
  const int last_page = b.pos(b.n_rows - 1) / page_size;
  for (int i = first_visible_key(b.pos(0), p.window) / page_size; i <= last_page; ++i) {
    load_page(p, b.kv_head, i, b.s);
    for (int r = 0; r < b.n_rows; r += 4) {
      const int n = b.n_rows - r < 4 ? b.n_rows - r : 4;
      if (b.pos(r + n - 1) >= i * page_size) attend_rows(b, i, r, n);
    }
  }
  for (int r = 0; r < b.n_rows; ++r) {
    const Vec sum = simd::splat(b.s.sum[r]);
    float* out = p.out + b.offset(r, p.out_stride);
    const float* acc = b.s.acc + int64_t{r} * head_dim;
    for (int d = 0; d < head_dim; d += kLanes) {
      simd::store(out + d, simd::div(simd::load(acc + d), sum));
    }
  }
}

void kv_append(const KvLayout& l, uint8_t* page, int slot, const float* k, const float* v) {
  if (l.type != KvType::kF16 || l.head_dim % 16 != 0) return ref::kv_append(l, page, slot, k, v);
  const int64_t P = l.page_size, D = l.head_dim;
  for (int h = 0; h < l.n_kv_heads; ++h, k += D, v += D) {
    uint8_t* kb = page + kv_k_offset(l, h) + 2 * slot;
    uint8_t* vb = page + kv_v_offset(l, h) + 2 * slot * D;
    for (int64_t d = 0; d < D; d += kLanes) {
      uint8_t column[2 * kLanes];
      simd::store_half(column, simd::load(k + d));
      for (int64_t i = 0; i < kLanes; ++i) memcpy(kb + 2 * (d + i) * P, column + 2 * i, 2);
      simd::store_half(vb + 2 * d, simd::load(v + d));
    }
  }
}

size_t attention_scratch_bytes(const AttentionParams& p, int n_tokens) {
  if (!is_served(p.layout)) return ref::attention_scratch_bytes(p, n_tokens);
  const size_t head_dim = static_cast<size_t>(p.layout.head_dim);
  const size_t rows = static_cast<size_t>(tokens_at_once(p) * group_of(p));
  return (2 * head_dim * static_cast<size_t>(p.layout.page_size) + rows * (head_dim + 2)) * sizeof(float);
}

void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end, uint8_t* scratch) {
  if (!is_served(p.layout)) return ref::attention(p, kv_head, token_begin, token_end, scratch);
  const int step = tokens_at_once(p);
  for (int t = token_begin; t < token_end; t += step) {
    const int n = token_end - t < step ? token_end - t : step;
    attend_block({p, kv_head, t, n * group_of(p), carve(p, scratch)});
  }
}

}  // namespace paged
}  // namespace
}  // namespace tandem
