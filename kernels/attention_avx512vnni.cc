// Attention over pages with AVX-512. For each page in ascending order: K and V to floats once for all rows of
// the block, then for every query row 16 scores a vector (one fma chain over head_dim), one online softmax
// update, and one fma a slot into the output row. A row does these operations for exactly the pages and
// slots it sees, so its result does not depend on its neighbours.
// Served here: head_dim and page_size multiples of 16; everything else goes to the reference.
#include <math.h>
#include <string.h>

#include "kernels/columns.h"
#include "kernels/kv_layout.h"
#include "kernels/math_avx512vnni.h"

namespace tandem::avx512vnni {
namespace {

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
  for (int64_t i = 0; i < n; i += 16) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 2 * i));
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(h));
  }
}

__m512 bytes_to_floats(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

float half_at(const uint8_t* p, int64_t i) {
  uint16_t h;
  memcpy(&h, p + 2 * i, sizeof h);
  return _cvtsh_ss(h);
}

void k_from_q8(const KvLayout& l, const uint8_t* src, float* out) {
  const int64_t P = l.page_size, D = l.head_dim;
  const uint8_t* scales = src + D * P;
  for (int64_t d = 0; d < D; ++d) {
    for (int64_t slot = 0; slot < P; slot += 16) {
      const uint8_t* s = scales + 2 * (d / 32 * P + slot);
      const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(s)));
      _mm512_storeu_ps(out + d * P + slot, _mm512_mul_ps(scale, bytes_to_floats(src + d * P + slot)));
    }
  }
}

void v_from_q8(const KvLayout& l, const uint8_t* src, float* out) {
  const int64_t P = l.page_size, D = l.head_dim, n_blocks = (D + 31) / 32;
  const uint8_t* scales = src + D * P;
  for (int64_t slot = 0; slot < P; ++slot) {
    for (int64_t d = 0; d < D; d += 16) {
      const __m512 scale = _mm512_set1_ps(half_at(scales, slot * n_blocks + d / 32));
      _mm512_storeu_ps(out + slot * D + d, _mm512_mul_ps(scale, bytes_to_floats(src + slot * D + d)));
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
  for (int slot = 0; slot < page_size; slot += 16) {
    __m512 acc[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
    const float* column = k + slot;
    for (int d = 0; d < head_dim; ++d, column += page_size) {
      const __m512 keys = _mm512_loadu_ps(column);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[r] = _mm512_fmadd_ps(keys, _mm512_set1_ps(q[r][d]), acc[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(scores[r] + slot, acc[r]);
  }
}

// Scores to weights e^(score - new max) in place; slots outside [begin, end) become 0. Updates the row's
// maximum and sum and returns what the row's earlier sums shrink by.
float softmax_step(const AttentionParams& p, float* scores, int begin, int end, float* max, float* sum) {
  const int page_size = p.layout.page_size;
  __m512 high = _mm512_set1_ps(-INFINITY);
  for (int slot = 0; slot < page_size; slot += 16) {
    const __mmask16 seen = static_cast<__mmask16>(first_lanes(end > slot ? end - slot : 0) &
                                                  ~first_lanes(begin > slot ? begin - slot : 0));
    __m512 s = _mm512_mul_ps(_mm512_loadu_ps(scores + slot), _mm512_set1_ps(p.scale));
    if (p.softcap > 0) {
      const __m512 cap = _mm512_set1_ps(p.softcap);
      s = _mm512_mul_ps(cap, tanh512(_mm512_div_ps(s, cap)));
    }
    s = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, s);
    _mm512_storeu_ps(scores + slot, s);
    high = _mm512_max_ps(high, s);
  }
  const float page_max = _mm512_reduce_max_ps(high);
  const float new_max = page_max > *max ? page_max : *max;
  __m512 total = _mm512_setzero_ps();
  for (int slot = 0; slot < page_size; slot += 16) {
    const __m512 w = exp512(_mm512_sub_ps(_mm512_loadu_ps(scores + slot), _mm512_set1_ps(new_max)));
    _mm512_storeu_ps(scores + slot, w);
    total = _mm512_add_ps(total, w);
  }
  const float shrink = _mm512_cvtss_f32(exp512(_mm512_set1_ps(*max - new_max)));
  *max = new_max;
  *sum = *sum * shrink + _mm512_reduce_add_ps(total);
  return shrink;
}

// acc[0, 16 * kVectors) = acc * shrink + sum over slots of weight * v.
template <int kVectors>
void add_values(const float* weights, int begin, int end, float shrink, const float* v, int head_dim,
                float* acc) {
  __m512 a[kVectors];
  const __m512 s = _mm512_set1_ps(shrink);
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) a[j] = _mm512_mul_ps(_mm512_loadu_ps(acc + 16 * j), s);
  for (int slot = begin; slot < end; ++slot) {
    const __m512 w = _mm512_set1_ps(weights[slot]);
    const float* row = v + static_cast<int64_t>(slot) * head_dim;
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) a[j] = _mm512_fmadd_ps(w, _mm512_loadu_ps(row + 16 * j), a[j]);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) _mm512_storeu_ps(acc + 16 * j, a[j]);
}

void add_all_values(const float* weights, int begin, int end, float shrink, const float* v, int head_dim,
                    float* acc) {
  int d = 0;
  for (; head_dim - d >= 128; d += 128) {
    add_values<8>(weights, begin, end, shrink, v + d, head_dim, acc + d);
  }
  for (; head_dim - d >= 64; d += 64) {
    add_values<4>(weights, begin, end, shrink, v + d, head_dim, acc + d);
  }
  for (; d < head_dim; d += 16) add_values<1>(weights, begin, end, shrink, v + d, head_dim, acc + d);
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
    const __m512 sum = _mm512_set1_ps(b.s.sum[r]);
    float* out = p.out + b.offset(r, p.out_stride);
    const float* acc = b.s.acc + int64_t{r} * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
      _mm512_storeu_ps(out + d, _mm512_div_ps(_mm512_loadu_ps(acc + d), sum));
    }
  }
}

}  // namespace

void kv_append(const KvLayout& l, uint8_t* page, int slot, const float* k, const float* v) {
  if (l.type != KvType::kF16 || l.head_dim % 16 != 0) return ref::kv_append(l, page, slot, k, v);
  const int64_t P = l.page_size, D = l.head_dim;
  for (int h = 0; h < l.n_kv_heads; ++h, k += D, v += D) {
    uint8_t* kb = page + kv_k_offset(l, h) + 2 * slot;
    uint8_t* vb = page + kv_v_offset(l, h) + 2 * slot * D;
    for (int64_t d = 0; d < D; d += 16) {
      alignas(32) uint16_t column[16];
      const __m256i keys = _mm512_cvtps_ph(_mm512_loadu_ps(k + d), _MM_FROUND_TO_NEAREST_INT);
      _mm256_store_si256(reinterpret_cast<__m256i*>(column), keys);
      for (int64_t i = 0; i < 16; ++i) memcpy(kb + 2 * (d + i) * P, column + i, 2);
      const __m256i values = _mm512_cvtps_ph(_mm512_loadu_ps(v + d), _MM_FROUND_TO_NEAREST_INT);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(vb + 2 * d), values);
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

}  // namespace tandem::avx512vnni
