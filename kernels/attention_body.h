// Attention over pages, once for all vector columns: attention_<isa>.cc includes its simd_<isa>.h,
// then this. Keys are taken in runs of 64 aligned positions, in ascending order, read from their
// pages as they are: for every query row its scores (one fma chain over head_dim each; in q8_0 one a
// block of 32, joined in ascending order), one online softmax update in powers of two, and one fma a
// key into the output row. A row does these operations for exactly the runs and slots it sees, and
// joins its parts of kAttentionPartKeys positions in ascending order, whoever computed them: its
// result depends neither on its neighbours nor on how the work was split. Served here: head_dim a
// multiple of 16, page_size 16, 32 or 64; everything else goes to the reference.
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

constexpr int kRowsAtOnce = 128;  // query rows (token, head) that pass over a run while it is cached
constexpr int kKeysAtOnce = 64;   // keys of one softmax update: pages of an aligned run of positions
constexpr int kVectors = kKeysAtOnce / kLanes;
static_assert(kAttentionPartKeys % kKeysAtOnce == 0);
constexpr float kLog2E = 1.44269504f;

bool is_served(const KvLayout& l) {
  return l.head_dim % 16 == 0 && l.page_size % 16 == 0 && kKeysAtOnce % l.page_size == 0;
}

int group_of(const AttentionParams& p) { return p.n_heads / p.layout.n_kv_heads; }

int tokens_at_once(const AttentionParams& p) {
  const int group = group_of(p);
  return group >= kRowsAtOnce ? 1 : kRowsAtOnce / group;
}

// One query row of a block.
struct Row {
  int pos;
  const float* q;
};

// The scratch of one call, carved from the caller's bytes: a record (attention_record_floats) for
// each row of the part being computed, and one for what its parts before have joined to.
struct Scratch {
  float* part;
  float* total;
  Row* rows;
};

int64_t rows_at_once(const AttentionParams& p) { return int64_t{tokens_at_once(p)} * group_of(p); }

Scratch carve(const AttentionParams& p, uint8_t* bytes) {
  const int64_t floats = rows_at_once(p) * attention_record_floats(p.layout.head_dim);
  float* part = reinterpret_cast<float*>(bytes);
  return {part, part + floats, reinterpret_cast<Row*>(part + 2 * floats)};
}

// Where a run's K and V are read from. Pointers of pages that no row sees stay null.
template <KvType type, bool ahead>
struct Run {
  static constexpr KvType kType = type;
  // A decode step waits for memory, and its pages lie apart, so that the processor does not foresee
  // the next: while it reads an element, it asks for the same one of the run after.
  static constexpr bool kAhead = ahead;
  static constexpr int kBytes = kType == KvType::kF16 ? 2 : kType == KvType::kF32 ? 4 : 1;
  const uint8_t* k[kVectors];  // element [0][slot of vector] of its page
  const uint8_t* v[4];         // pages of the run
  const uint8_t* next_k[kVectors];
  const uint8_t* next_v[4];
  int64_t page_size, head_dim;
  int page_shift;  // log2 of page_size
  // q8_0 alone: scales of [block 0][slot of vector].
  const uint8_t* k_scales[kVectors];
  const uint8_t* v_scales[kVectors];

  inline __attribute__((always_inline)) Vec load(const uint8_t* p) const {
    if constexpr (kType == KvType::kF16) return simd::load_half(p);
    if constexpr (kType == KvType::kQ8_0) return simd::load_int8(p);
    return simd::load(reinterpret_cast<const float*>(p));
  }
  inline __attribute__((always_inline)) Vec keys(int vector, int64_t d) const {
    if constexpr (kAhead) __builtin_prefetch(next_k[vector] + kBytes * d * page_size);
    return load(k[vector] + kBytes * d * page_size);
  }
};

// The pages of positions [first, last] of the run at run_begin; those of the next run up to next_last.
template <typename Run>
Run find_run(const AttentionParams& p, int kv_head, int run_begin, int first, int last,
             int next_last) {
  const KvLayout& l = p.layout;
  Run run = {};
  run.page_size = l.page_size;
  run.head_dim = l.head_dim;
  run.page_shift = l.page_size == 16 ? 4 : l.page_size == 32 ? 5 : 6;
  const int64_t scales = int64_t{l.head_dim} * l.page_size;
  for (int i = first / l.page_size; i <= last / l.page_size; ++i) {
    const int slot = i * l.page_size - run_begin, next = i + kKeysAtOnce / l.page_size;
    const bool has_next = Run::kAhead && next * l.page_size <= next_last;
    const uint8_t* page = p.pool + static_cast<size_t>(p.page_table[i]) * l.page_bytes;
    const uint8_t* next_page =
        has_next ? p.pool + static_cast<size_t>(p.page_table[next]) * l.page_bytes : page;
    const size_t k = kv_k_offset(l, kv_head), v = kv_v_offset(l, kv_head);
    run.v[slot >> run.page_shift] = page + v;
    run.next_v[slot >> run.page_shift] = next_page + v;
    for (int at = 0; at < l.page_size; at += kLanes) {
      const int vector = (slot + at) / kLanes;
      run.k[vector] = page + k + Run::kBytes * at;
      run.next_k[vector] = next_page + k + Run::kBytes * at;
      run.k_scales[vector] = page + k + scales + 2 * at;
      run.v_scales[vector] = page + v + scales + 2 * at;
    }
  }
  return run;
}

// q·k of kRows rows with the keys of kWide vectors: one fma chain over the elements [begin, end).
template <int kRows, int kWide, typename Run>
TANDEM_SIMD void score_chain(const float* const* q, const Run& run, int vector, int64_t begin,
                             int64_t end, Vec (*acc)[kWide]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) acc[r][v] = simd::zero();
  }
  for (int64_t d = begin; d < end; ++d) {
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
}

template <int kRows, int kWide, typename Run>
TANDEM_SIMD void score_some(const float* const* q, const Run& run, int vector, int64_t head_dim,
                            float (*scores)[kKeysAtOnce]) {
  constexpr KvType kType = Run::kType;
  constexpr int64_t kBlock = kType == KvType::kQ8_0 ? 32 : 1 << 30;
  for (int64_t begin = 0; begin < head_dim; begin += kBlock) {
    Vec acc[kRows][kWide];
    const int64_t end = begin + kBlock < head_dim ? begin + kBlock : head_dim;
    score_chain<kRows, kWide>(q, run, vector, begin, end, acc);
#pragma GCC unroll 4
    for (int v = 0; v < kWide; ++v) {
      Vec scale = simd::zero();
      if constexpr (kType == KvType::kQ8_0) {
        scale = simd::load_half(run.k_scales[vector + v] + 2 * (begin / 32 * run.page_size));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        float* to = scores[r] + (vector + v) * kLanes;
        if constexpr (kType != KvType::kQ8_0) {
          simd::store(to, acc[r][v]);
        } else {
          simd::store(to, begin == 0 ? simd::mul(acc[r][v], scale)
                                     : simd::fma(acc[r][v], scale, simd::load(to)));
        }
      }
    }
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

bool is_whole(Seen s) { return s.begin == 0 && s.end == kKeysAtOnce; }

// Scaled and capped score, as a power of two.
TANDEM_SIMD Vec scaled_score(const AttentionParams& p, const float* scores, int slot) {
  if (p.softcap <= 0) return simd::mul(simd::load(scores + slot), simd::splat(p.scale * kLog2E));
  const Vec cap = simd::splat(p.softcap);
  const Vec s = simd::mul(simd::load(scores + slot), simd::splat(p.scale));
  return simd::mul(simd::splat(p.softcap * kLog2E), simd::tanh(simd::div(s, cap)));
}

// Scores to weights 2^(score - new max) in place, for kRows rows side by side (one row is all
// latency). Slots outside the seen ones become 0, whatever they held. Updates each row's maximum and
// sum; shrink[r] is what the row's earlier sums shrink by.
template <int kRows, bool kWhole>
void softmax_step(const AttentionParams& p, float (*scores)[kKeysAtOnce], const Seen* seen,
                  float* const* max, float* const* sum, float* shrink) {
  Vec high[kRows], total[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    high[r] = simd::splat(-INFINITY);
    total[r] = simd::zero();
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int slot = v * kLanes;
      Vec s = scaled_score(p, scores[r], slot);
      if constexpr (!kWhole) s = simd::keep(s, seen[r].begin - slot, seen[r].end - slot, -INFINITY);
      simd::store(scores[r] + slot, s);
      high[r] = simd::max(high[r], s);
    }
  }
  alignas(64) float change[kLanes] = {};
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const float run_max = simd::largest(high[r]);
    const float new_max = run_max > *max[r] ? run_max : *max[r];
    change[r] = *max[r] - new_max;
    *max[r] = new_max;
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec s = simd::load(scores[r] + v * kLanes);
      const Vec w = simd::exp2_down(simd::sub(s, simd::splat(*max[r])));
      simd::store(scores[r] + v * kLanes, w);
      total[r] = simd::add(total[r], w);
    }
  }
  simd::store(change, simd::exp2_down(simd::load(change)));
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    shrink[r] = change[r];
    *sum[r] = *sum[r] * change[r] + simd::sum(total[r]);
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
  const int64_t stride = Run::kBytes * run.head_dim;
  for (int slot = begin; slot < end;) {
    const int page = slot >> run.page_shift, page_end = (page + 1) << run.page_shift;
    const int stop = page_end < end ? page_end : end;
    const int64_t offset = (slot & (run.page_size - 1)) * stride + Run::kBytes * at;
    const uint8_t* v = run.v[page] + offset;
    const uint8_t* next = run.next_v[page] + offset;
    for (; slot < stop; ++slot, v += stride, next += stride) {
      Vec x[kWide];
#pragma GCC unroll 4
      for (int j = 0; j < kWide; ++j) {
        if constexpr (Run::kAhead) __builtin_prefetch(next + Run::kBytes * kLanes * j);
        x[j] = run.load(v + Run::kBytes * kLanes * j);
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Vec w = simd::splat(weights[r][slot]);
#pragma GCC unroll 4
        for (int j = 0; j < kWide; ++j) a[r][j] = simd::fma(w, x[j], a[r][j]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < kWide; ++j) simd::store(acc[r] + at + kLanes * j, a[r][j]);
  }
}

// q8_0: a block of 32 values of a slot has one scale, which the slot's weight takes on.
template <int kRows, typename Run>
TANDEM_SIMD void scale_weights(const float (*weights)[kKeysAtOnce], int begin, int end,
                               const Run& run, int64_t block, float (*scaled)[kKeysAtOnce]) {
  for (int v = begin / kLanes; v * kLanes < end; ++v) {
    const Vec scale = simd::load_half(run.v_scales[v] + 2 * block * run.page_size);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      simd::store(scaled[r] + v * kLanes, simd::mul(simd::load(weights[r] + v * kLanes), scale));
    }
  }
}

template <int kRows, typename Run>
void add_values(const float (*weights)[kKeysAtOnce], int begin, int end, const Run& run,
                int head_dim, float* const* acc) {
  if (begin >= end) return;
  if constexpr (Run::kType == KvType::kQ8_0) {
    constexpr int kWide = 32 / kLanes < simd::kWide ? 32 / kLanes : simd::kWide;
    alignas(64) float scaled[kRows][kKeysAtOnce];
    for (int d = 0; d < head_dim; d += 32) {
      scale_weights<kRows>(weights, begin, end, run, d / 32, scaled);
      const int last = d + 32 < head_dim ? d + 32 : head_dim;
      int i = d;
      for (; last - i >= kWide * kLanes; i += kWide * kLanes) {
        add_some<kRows, kWide>(scaled, begin, end, run, acc, i);
      }
      for (; i < last; i += kLanes) add_some<kRows, 1>(scaled, begin, end, run, acc, i);
    }
  } else {
    constexpr int kWide = simd::kWide;
    int d = 0;
    for (; head_dim - d >= kWide * kLanes; d += kWide * kLanes) {
      add_some<kRows, kWide>(weights, begin, end, run, acc, d);
    }
    for (; d < head_dim; d += kLanes) add_some<kRows, 1>(weights, begin, end, run, acc, d);
  }
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
  const Row* rows;  // positions ascending
  int n_rows;
  float* records;  // of the part that is computed

  float* record(int r) const { return records + r * attention_record_floats(p.layout.head_dim); }
};

void find_rows(const AttentionParams& p, int kv_head, int token_begin, int n_rows, Row* rows) {
  const int group = group_of(p);
  int token = token_begin, head = kv_head * group;
  for (int r = 0; r < n_rows; ++r) {
    rows[r] = {p.first_pos + token, p.q + token * p.q_stride + int64_t{head} * p.layout.head_dim};
    if (++head == (kv_head + 1) * group) head = kv_head * group, ++token;
  }
}

Seen seen_of(const RowBlock& b, int r, int run_begin) {
  const int pos = b.rows[r].pos, first = first_visible_key(pos, b.p.window) - run_begin,
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
  float *acc[kRows], *max[kRows], *sum[kRows];
  Seen seen[kRows], any = {kKeysAtOnce, 0}, all = {0, kKeysAtOnce};
  for (int i = 0; i < kRows; ++i) {
    q[i] = b.rows[first_row + i].q;
    acc[i] = b.record(first_row + i);
    max[i] = acc[i] + head_dim;
    sum[i] = max[i] + 1;
    seen[i] = seen_of(b, first_row + i, run_begin);
    any = {seen[i].begin < any.begin ? seen[i].begin : any.begin,
           seen[i].end > any.end ? seen[i].end : any.end};
    all = {seen[i].begin > all.begin ? seen[i].begin : all.begin,
           seen[i].end < all.end ? seen[i].end : all.end};
  }
  alignas(64) float scores[kRows][kKeysAtOnce];
  float shrink[kRows];
  if (is_whole(all)) {
    score<kRows>(q, run, head_dim, 0, kKeysAtOnce, scores);
    softmax_step<kRows, true>(p, scores, seen, max, sum, shrink);
  } else {
    memset(scores, 0, sizeof scores);
    score<kRows>(q, run, head_dim, any.begin, any.end, scores);
    softmax_step<kRows, false>(p, scores, seen, max, sum, shrink);
  }
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

// The rows' records of the keys of one part. A row that sees none of them gets a sum of 0. The pages
// up to next_last will be read next.
template <typename Run>
void attend_part(const RowBlock& b, int part, int next_last) {
  const AttentionParams& p = b.p;
  const int head_dim = p.layout.head_dim;
  for (int r = 0; r < b.n_rows; ++r) {
    float* record = b.record(r);
    for (int d = 0; d < head_dim; d += kLanes) simd::store(record + d, simd::zero());
    record[head_dim] = -INFINITY;
    record[head_dim + 1] = 0;
  }
  const int part_begin = part * kAttentionPartKeys, part_last = part_begin + kAttentionPartKeys - 1;
  const int seen_first = first_visible_key(b.rows[0].pos, p.window);
  const int seen_last = b.rows[b.n_rows - 1].pos;
  const int first = seen_first > part_begin ? seen_first : part_begin;
  const int last = seen_last < part_last ? seen_last : part_last;
  for (int run = first / kKeysAtOnce * kKeysAtOnce; run <= last; run += kKeysAtOnce) {
    const int run_last = run + kKeysAtOnce - 1;
    attend_run(b, find_run<Run>(p, b.kv_head, run, first > run ? first : run,
                                last < run_last ? last : run_last, next_last),
               run);
  }
}

template <KvType kType>
void attend_part(const RowBlock& b, int part, int next_last) {
  constexpr int kFewRows = 8;  // more of them read a run from the cache
  if (b.n_rows <= kFewRows) {
    attend_part<Run<kType, true>>(b, part, next_last);
  } else {
    attend_part<Run<kType, false>>(b, part, next_last);
  }
}

using PartFunction = void (*)(const RowBlock& b, int part, int next_last);
PartFunction part_function(KvType type) {
  return type == KvType::kF16   ? attend_part<KvType::kF16>
         : type == KvType::kF32 ? attend_part<KvType::kF32>
                                : attend_part<KvType::kQ8_0>;
}

// total = what the keys of total and of the part after it give together. A part without keys (sum
// 0) changes nothing, and the first that has some is taken as it is.
void join_record(float* total, const float* part, int head_dim) {
  const float sum = part[head_dim + 1];
  if (sum == 0) return;
  if (total[head_dim + 1] == 0) {
    memcpy(total, part, static_cast<size_t>(head_dim + 2) * sizeof(float));
    return;
  }
  const float a = total[head_dim], b = part[head_dim];
  const float max = a > b ? a : b;
  alignas(64) float shrink[kLanes] = {a - max, b - max};
  simd::store(shrink, simd::exp2_down(simd::load(shrink)));
  const Vec sa = simd::splat(shrink[0]), sb = simd::splat(shrink[1]);
  for (int d = 0; d < head_dim; d += kLanes) {
    const Vec scaled = simd::mul(simd::load(part + d), sb);
    simd::store(total + d, simd::fma(simd::load(total + d), sa, scaled));
  }
  total[head_dim] = max;
  total[head_dim + 1] = total[head_dim + 1] * shrink[0] + sum * shrink[1];
}

void store_record(const float* record, int head_dim, float* out) {
  const Vec sum = simd::splat(record[head_dim + 1]);
  for (int d = 0; d < head_dim; d += kLanes) {
    simd::store(out + d, simd::div(simd::load(record + d), sum));
  }
}

void attend_block(const AttentionParams& p, int kv_head, int token_begin, int n_tokens,
                  const Scratch& s) {
  const int head_dim = p.layout.head_dim, group = group_of(p);
  const PartFunction attend = part_function(p.layout.type);
  RowBlock b = {p, kv_head, s.rows, n_tokens * group, s.total};
  find_rows(p, kv_head, token_begin, b.n_rows, s.rows);
  const int last_pos = s.rows[b.n_rows - 1].pos;
  const int first = first_visible_key(s.rows[0].pos, p.window) / kAttentionPartKeys;
  attend(b, first, last_pos);
  b.records = s.part;
  for (int part = first + 1; part <= last_pos / kAttentionPartKeys; ++part) {
    attend(b, part, last_pos);
    for (int r = 0; r < b.n_rows; ++r) {
      float* total = s.total + r * attention_record_floats(head_dim);
      join_record(total, b.record(r), head_dim);
    }
  }
  b.records = s.total;
  for (int r = 0; r < b.n_rows; ++r) {
    const int token = token_begin + r / group, head = kv_head * group + r % group;
    store_record(b.record(r), head_dim, p.out + token * p.out_stride + int64_t{head} * head_dim);
  }
}

// Of a head's 32 values: int8 at values[0..n), n <= 32; returns the scale as a half.
uint16_t quantize_head_block(const float* x, int n, int8_t* values) {
  Vec high = simd::zero();
  for (int d = 0; d < n; d += kLanes) {
    const Vec v = simd::load(x + d);
    high = simd::max(simd::max(v, simd::sub(simd::zero(), v)), high);
  }
  const uint16_t scale = float_to_half(simd::largest(high) / 127.0f);
  const float stored = half_to_float(scale);
  const float inverse = stored > 0 && stored <= 65504.0f ? 1.0f / stored : 0.0f;
  for (int d = 0; d < n; d += kLanes) {
    simd::store_as_int8(values + d, simd::mul(simd::load(x + d), simd::splat(inverse)));
  }
  return scale;
}

void append_q8(const KvLayout& l, uint8_t* page, int slot, const float* k, const float* v) {
  const int64_t P = l.page_size, D = l.head_dim;
  for (int h = 0; h < l.n_kv_heads; ++h, k += D, v += D) {
    uint8_t* kb = page + kv_k_offset(l, h);
    uint8_t* vb = page + kv_v_offset(l, h);
    for (int64_t d = 0; d < D; d += 32) {
      const int n = static_cast<int>(D - d < 32 ? D - d : 32);
      const int64_t scale_at = D * P + 2 * (d / 32 * P + slot);
      alignas(64) int8_t bytes[32];
      const uint16_t k_scale = quantize_head_block(k + d, n, bytes);
      for (int i = 0; i < n; ++i) kb[(d + i) * P + slot] = static_cast<uint8_t>(bytes[i]);
      memcpy(kb + scale_at, &k_scale, 2);
      const uint16_t v_scale = quantize_head_block(v + d, n, bytes);
      memcpy(vb + slot * D + d, bytes, static_cast<size_t>(n));
      memcpy(vb + scale_at, &v_scale, 2);
    }
  }
}

void append_half(const KvLayout& l, uint8_t* page, int slot, const float* k, const float* v) {
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

void kv_append(const KvLayout& l, uint8_t* page, int slot, const float* k, const float* v) {
  if (l.type == KvType::kF32 || l.head_dim % 16 != 0) {
    ref::kv_append(l, page, slot, k, v);
  } else if (l.type == KvType::kF16) {
    append_half(l, page, slot, k, v);
  } else {
    append_q8(l, page, slot, k, v);
  }
}

size_t attention_scratch_bytes(const AttentionParams& p, int n_tokens) {
  if (!is_served(p.layout)) return ref::attention_scratch_bytes(p, n_tokens);
  const int64_t floats = 2 * attention_record_floats(p.layout.head_dim);
  return static_cast<size_t>(rows_at_once(p)) *
         (static_cast<size_t>(floats) * sizeof(float) + sizeof(Row));
}

void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end,
               uint8_t* scratch) {
  if (!is_served(p.layout)) return ref::attention(p, kv_head, token_begin, token_end, scratch);
  const int step = tokens_at_once(p);
  for (int t = token_begin; t < token_end; t += step) {
    attend_block(p, kv_head, t, token_end - t < step ? token_end - t : step, carve(p, scratch));
  }
}

void attention_parts(const AttentionParams& p, int kv_head, int token_begin, int token_end,
                     int part_begin, int part_end, float* records, int64_t stride,
                     uint8_t* scratch) {
  if (!is_served(p.layout)) {
    return ref::attention_parts(p, kv_head, token_begin, token_end, part_begin, part_end, records,
                                stride, scratch);
  }
  const PartFunction attend = part_function(p.layout.type);
  Row* rows = carve(p, scratch).rows;
  const int step = tokens_at_once(p), end = part_end * kAttentionPartKeys;
  for (int t = token_begin; t < token_end; t += step) {
    const int n_rows = (token_end - t < step ? token_end - t : step) * group_of(p);
    RowBlock b = {p, kv_head, rows, n_rows, records};
    find_rows(p, kv_head, t, n_rows, rows);
    const int last = rows[n_rows - 1].pos, next_last = last < end ? last : end - 1;
    for (int part = part_begin; part < part_end; ++part, b.records += stride) {
      attend(b, part, next_last);
    }
    records += n_rows * attention_record_floats(p.layout.head_dim);
  }
}

void attention_join(const KvLayout& l, const float* records, int n_parts, int64_t stride, float* out,
                    uint8_t* scratch) {
  if (!is_served(l)) return ref::attention_join(l, records, n_parts, stride, out, scratch);
  float* total = reinterpret_cast<float*>(scratch);
  total[l.head_dim + 1] = 0;
  for (int i = 0; i < n_parts; ++i) join_record(total, records + i * stride, l.head_dim);
  store_record(total, l.head_dim, out);
}

}  // namespace paged
}  // namespace
}  // namespace tandem
