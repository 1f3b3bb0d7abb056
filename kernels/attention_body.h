// Attention over pages, once for all vector columns: attention_<isa>.cc includes its simd_<isa>.h,
// then this. Keys are taken in runs of 64 aligned positions, in ascending order: K and V of the
// run's pages to floats once for all rows of the block, then for every query row its scores (one
// fma chain over head_dim each), one online softmax update, and one fma a key into the output row.
// A row does these operations for exactly the runs and slots it sees, so its result does not depend
// on its neighbours. Served here: head_dim a multiple of 16, page_size 16, 32 or 64; everything
// else goes to the reference.
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

constexpr int kRowsAtOnce = 64;  // query rows (token, head) that share converted pages
constexpr int kKeysAtOnce =
    64;  // keys of one softmax update: pages of an aligned run of 64 positions
constexpr int kVectors = kKeysAtOnce / kLanes;
constexpr int kFewRows = 4;  // rows that read half-precision pages directly

bool is_served(const KvLayout& l) {
  return l.head_dim % 16 == 0 && l.page_size % 16 == 0 && kKeysAtOnce % l.page_size == 0;
}

int group_of(const AttentionParams& p) { return p.n_heads / p.layout.n_kv_heads; }

int tokens_at_once(const AttentionParams& p) {
  const int group = group_of(p);
  return group >= kRowsAtOnce ? 1 : kRowsAtOnce / group;
}

// The scratch of one call, carved from the caller's bytes.
struct Scratch {
  float* k;    // [head_dim][kKeysAtOnce]
  float* v;    // [kKeysAtOnce][head_dim]
  float* acc;  // [rows][head_dim]
  float* max;  // [rows]
  float* sum;  // [rows]
};

Scratch carve(const AttentionParams& p, uint8_t* bytes) {
  const int64_t page = int64_t{p.layout.head_dim} * kKeysAtOnce;
  const int64_t rows = int64_t{tokens_at_once(p)} * group_of(p);
  Scratch s;
  s.k = reinterpret_cast<float*>(bytes);
  s.v = s.k + page;
  s.acc = s.v + page;
  s.max = s.acc + rows * p.layout.head_dim;
  s.sum = s.max + rows;
  return s;
}

// K of one head of a page to columns [0, P) of out, whose rows are kKeysAtOnce floats.
void convert_k(KvType type, int64_t P, int64_t D, const uint8_t* src, float* out) {
  if (type == KvType::kF16) {
    for (int64_t d = 0; d < D; ++d, src += 2 * P, out += kKeysAtOnce) {
      for (int64_t slot = 0; slot < P; slot += kLanes) {
        simd::store(out + slot, simd::load_half(src + 2 * slot));
      }
    }
    return;
  }
  if (type == KvType::kF32) {
    for (int64_t d = 0; d < D; ++d)
      memcpy(out + d * kKeysAtOnce, src + 4 * d * P, 4 * static_cast<size_t>(P));
    return;
  }
  const uint8_t* scales = src + D * P;
  for (int64_t d = 0; d < D; ++d, src += P, out += kKeysAtOnce) {
    for (int64_t slot = 0; slot < P; slot += kLanes) {
      const Vec scale = simd::load_half(scales + 2 * (d / 32 * P + slot));
      simd::store(out + slot, simd::mul(scale, simd::load_int8(src + slot)));
    }
  }
}

void convert_v(KvType type, int64_t P, int64_t D, const uint8_t* src, float* out) {
  if (type == KvType::kF16) {
    for (int64_t i = 0; i < P * D; i += kLanes) simd::store(out + i, simd::load_half(src + 2 * i));
    return;
  }
  if (type == KvType::kF32) {
    memcpy(out, src, 4 * static_cast<size_t>(P * D));
    return;
  }
  const uint8_t* scale = src + D * P;
  for (int64_t slot = 0; slot < P; ++slot, src += D, out += D) {
    for (int64_t begin = 0; begin < D; begin += 32, scale += 2) {
      const int64_t end = begin + 32 < D ? begin + 32 : D;
      uint16_t half;
      memcpy(&half, scale, sizeof half);
      const Vec s = simd::splat(half_to_float(half));
      for (int64_t d = begin; d < end; d += kLanes) {
        simd::store(out + d, simd::mul(s, simd::load_int8(src + d)));
      }
    }
  }
}

// The pages that hold positions [first, last] of the run of keys at `run_begin`.
void load_pages(const AttentionParams& p, int kv_head, int run_begin, int first, int last,
                const Scratch& s) {
  const KvLayout& l = p.layout;
  for (int i = first / l.page_size; i <= last / l.page_size; ++i) {
    const uint8_t* page = p.pool + static_cast<size_t>(p.page_table[i]) * l.page_bytes;
    const int slot = i * l.page_size - run_begin;
    convert_k(l.type, l.page_size, l.head_dim, page + kv_k_offset(l, kv_head), s.k + slot);
    convert_v(l.type, l.page_size, l.head_dim, page + kv_v_offset(l, kv_head),
              s.v + int64_t{slot} * l.head_dim);
  }
}

// Where a run's K and V are read from: floats converted once for many rows, …
struct FloatRun {
  const float* k;
  const float* v;
  int64_t head_dim;

  inline __attribute__((always_inline)) Vec keys(int vector, int64_t d) const {
    return simd::load(k + d * kKeysAtOnce + vector * kLanes);
  }
  inline __attribute__((always_inline)) Vec values(int slot, int64_t d) const {
    return simd::load(v + slot * head_dim + d);
  }
};

// … or the half-precision pages themselves, for the few rows of a decode step: the same floats.
struct HalfRun {
  const uint8_t* k[kVectors];  // element [0][slot of vector] of its page
  const uint8_t* v[4];         // pages of the run
  int64_t page_size, head_dim;
  int page_shift;  // log2 of page_size

  inline __attribute__((always_inline)) Vec keys(int vector, int64_t d) const {
    return simd::load_half(k[vector] + 2 * d * page_size);
  }
  inline __attribute__((always_inline)) Vec values(int slot, int64_t d) const {
    return simd::load_half(v[slot >> page_shift] + 2 * ((slot & (page_size - 1)) * head_dim + d));
  }
};

// q·k of kRows rows with the keys of kWide vectors: one fma chain over head_dim for each.
template <int kRows, int kWide, typename Run>
TANDEM_SIMD void score_some(const float* const* q, const Run& run, int vector, int64_t head_dim,
                            float (*scores)[kKeysAtOnce]) {
  Vec acc[kRows][kWide];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) acc[r][v] = simd::zero();
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec keys[kWide];
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) keys[v] = run.keys(vector + v, d);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec x = simd::splat(q[r][d]);
#pragma GCC unroll 4
      for (int v = 0; v < kWide; ++v) acc[r][v] = simd::fma(keys[v], x, acc[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) simd::store(scores[r] + (vector + v) * kLanes, acc[r][v]);
  }
}

// Keys of the vectors that hold [begin, end).
template <int kRows, typename Run>
void score(const float* const* q, const Run& run, int head_dim, int begin, int end,
           float (*scores)[kKeysAtOnce]) {
  constexpr int kWide = simd::kWide;
  const int vectors = (end + kLanes - 1) / kLanes;
  int v = begin / kLanes;
  for (; v + kWide <= vectors; v += kWide) score_some<kRows, kWide>(q, run, v, head_dim, scores);
  for (; v < vectors; ++v) score_some<kRows, 1>(q, run, v, head_dim, scores);
}

// What a row sees of a run of keys.
struct Seen {
  int begin, end;  // slots of the run; empty if begin >= end
};

// Scaled and capped score; slots outside the seen ones become -infinity, whatever they held.
TANDEM_SIMD Vec masked_score(const AttentionParams& p, const float* scores, int slot, Seen seen) {
  Vec s = simd::mul(simd::load(scores + slot), simd::splat(p.scale));
  if (p.softcap > 0) {
    const Vec cap = simd::splat(p.softcap);
    s = simd::mul(cap, simd::tanh(simd::div(s, cap)));
  }
  return simd::keep(s, seen.begin - slot, seen.end - slot, -INFINITY);
}

// Scores to weights e^(score - new max) in place, for kRows rows side by side (one row is all
// latency). Updates each row's maximum and sum; shrink[r] is what the row's earlier sums shrink by.
template <int kRows>
void softmax_step(const AttentionParams& p, float (*scores)[kKeysAtOnce], const Seen* seen,
                  float* max, float* sum, float* shrink) {
  Vec high[kRows], total[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    high[r] = simd::splat(-INFINITY);
    total[r] = simd::zero();
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const Vec s = masked_score(p, scores[r], v * kLanes, seen[r]);
      simd::store(scores[r] + v * kLanes, s);
      high[r] = simd::max(high[r], s);
    }
  }
  alignas(64) float change[kLanes] = {};
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const float run_max = simd::largest(high[r]);
    const float new_max = run_max > max[r] ? run_max : max[r];
    change[r] = max[r] - new_max;
    max[r] = new_max;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec s = simd::load(scores[r] + v * kLanes);
      const Vec w = simd::exp(simd::sub(s, simd::splat(max[r])));
      simd::store(scores[r] + v * kLanes, w);
      total[r] = simd::add(total[r], w);
    }
  }
  simd::store(change, simd::exp(simd::load(change)));
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    shrink[r] = change[r];
    sum[r] = sum[r] * change[r] + simd::sum(total[r]);
  }
}

// For each of kRows rows: acc[0, kWide * kLanes) += sum over slots [begin, end), ascending, of
// weight * v.
template <int kRows, int kWide, typename Run>
TANDEM_SIMD void add_some(const float (*weights)[kKeysAtOnce], int begin, int end, const Run& run,
                          float* const* acc, int64_t at) {
  Vec a[kRows][kWide];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) a[r][j] = simd::load(acc[r] + at + kLanes * j);
  }
  for (int slot = begin; slot < end; ++slot) {
    Vec x[kWide];
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) x[j] = run.values(slot, at + kLanes * j);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec w = simd::splat(weights[r][slot]);
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) a[r][j] = simd::fma(w, x[j], a[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) simd::store(acc[r] + at + kLanes * j, a[r][j]);
  }
}

template <int kRows, typename Run>
void add_values(const float (*weights)[kKeysAtOnce], int begin, int end, const Run& run,
                int head_dim, float* const* acc) {
  if (begin >= end) return;
  constexpr int kWide = simd::kWide;
  int d = 0;
  for (; head_dim - d >= kWide * kLanes; d += kWide * kLanes) {
    add_some<kRows, kWide>(weights, begin, end, run, acc, d);
  }
  for (; d < head_dim; d += kLanes) add_some<kRows, 1>(weights, begin, end, run, acc, d);
}

void shrink_row(float* acc, int head_dim, float shrink) {
  for (int d = 0; d < head_dim; d += kLanes) {
    simd::store(acc + d, simd::mul(simd::load(acc + d), simd::splat(shrink)));
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

Seen seen_of(const RowBlock& b, int r, int run_begin) {
  const int pos = b.pos(r), first = first_visible_key(pos, b.p.window) - run_begin,
            last = pos - run_begin;
  return {first > 0 ? first : 0, last < kKeysAtOnce ? last + 1 : kKeysAtOnce};
}

// Rows [first_row, first_row + kRows) that all see something of the run. Slots all of them see are
// added together; the rest, before and after, row by row: each row adds its own slots in ascending
// order.
template <int kRows, typename Run>
void attend_rows(const RowBlock& b, const Run& run, int run_begin, int first_row) {
  const AttentionParams& p = b.p;
  const int head_dim = p.layout.head_dim;
  const float* q[kRows];
  float* acc[kRows];
  Seen seen[kRows], any = {kKeysAtOnce, 0}, all = {0, kKeysAtOnce};
  for (int i = 0; i < kRows; ++i) {
    q[i] = p.q + b.offset(first_row + i, p.q_stride);
    acc[i] = b.s.acc + int64_t{first_row + i} * head_dim;
    seen[i] = seen_of(b, first_row + i, run_begin);
    any = {seen[i].begin < any.begin ? seen[i].begin : any.begin,
           seen[i].end > any.end ? seen[i].end : any.end};
    all = {seen[i].begin > all.begin ? seen[i].begin : all.begin,
           seen[i].end < all.end ? seen[i].end : all.end};
  }
  alignas(64) float scores[kRows][kKeysAtOnce] = {};
  score<kRows>(q, run, head_dim, any.begin, any.end, scores);
  float shrink[kRows];
  softmax_step<kRows>(p, scores, seen, b.s.max + first_row, b.s.sum + first_row, shrink);
  for (int i = 0; i < kRows; ++i) shrink_row(acc[i], head_dim, shrink[i]);
  if (all.begin >= all.end) {
    for (int i = 0; i < kRows; ++i) {
      add_values<1>(scores + i, seen[i].begin, seen[i].end, run, head_dim, acc + i);
    }
    return;
  }
  for (int i = 0; i < kRows; ++i) {
    add_values<1>(scores + i, seen[i].begin, all.begin, run, head_dim, acc + i);
  }
  add_values<kRows>(scores, all.begin, all.end, run, head_dim, acc);
  for (int i = 0; i < kRows; ++i) {
    add_values<1>(scores + i, all.end, seen[i].end, run, head_dim, acc + i);
  }
}

// All rows of the block that see something of the run at run_begin, at most four at once.
template <typename Run>
void attend_run(const RowBlock& b, const Run& run, int run_begin) {
  int r = 0;
  const auto sees = [&](int row) {
    const Seen s = seen_of(b, row, run_begin);
    return s.begin < s.end;
  };
  while (r < b.n_rows) {
    if (!sees(r)) {
      ++r;
      continue;
    }
    int n = 1;
    while (n < 4 && r + n < b.n_rows && sees(r + n)) ++n;
    if (n == 4) attend_rows<4>(b, run, run_begin, r);
    if (n == 3) attend_rows<3>(b, run, run_begin, r);
    if (n == 2) attend_rows<2>(b, run, run_begin, r);
    if (n == 1) attend_rows<1>(b, run, run_begin, r);
    r += n;
  }
}

// The pages of positions [first, last] of the run at run_begin; pointers of other pages stay null,
// and no row sees them.
HalfRun half_run(const AttentionParams& p, int kv_head, int run_begin, int first, int last) {
  const KvLayout& l = p.layout;
  HalfRun run = {};
  run.page_size = l.page_size;
  run.head_dim = l.head_dim;
  run.page_shift = l.page_size == 16 ? 4 : l.page_size == 32 ? 5 : 6;
  for (int i = first / l.page_size; i <= last / l.page_size; ++i) {
    const uint8_t* page = p.pool + static_cast<size_t>(p.page_table[i]) * l.page_bytes;
    const int slot = i * l.page_size - run_begin;
    run.v[slot >> run.page_shift] = page + kv_v_offset(l, kv_head);
    for (int at = 0; at < l.page_size; at += kLanes) {
      run.k[(slot + at) / kLanes] = page + kv_k_offset(l, kv_head) + 2 * at;
    }
  }
  return run;
}

void attend_block(const RowBlock& b) {
  const AttentionParams& p = b.p;
  const int head_dim = p.layout.head_dim;
  memset(b.s.acc, 0, static_cast<size_t>(b.n_rows) * static_cast<size_t>(head_dim) * sizeof(float));
  for (int r = 0; r < b.n_rows; ++r) {
    b.s.max[r] = -INFINITY;
    b.s.sum[r] = 0;
  }
  const int first = first_visible_key(b.pos(0), p.window), last = b.pos(b.n_rows - 1);
  for (int run = first / kKeysAtOnce * kKeysAtOnce; run <= last; run += kKeysAtOnce) {
    const int run_last = run + kKeysAtOnce - 1;
    const int seen_first = first > run ? first : run, seen_last = last < run_last ? last : run_last;
    if (b.n_rows <= kFewRows && p.layout.type == KvType::kF16) {
      attend_run(b, half_run(p, b.kv_head, run, seen_first, seen_last), run);
    } else {
      load_pages(p, b.kv_head, run, seen_first, seen_last, b.s);
      attend_run(b, FloatRun{b.s.k, b.s.v, head_dim}, run);
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
  return (2 * head_dim * static_cast<size_t>(kKeysAtOnce) + rows * (head_dim + 2)) * sizeof(float);
}

void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end,
               uint8_t* scratch) {
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
