// Attention over scattered pages: against the reference under a computed bound, and bit by bit
// whatever rows share a call. Every slot that no query may see holds NaN.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

struct Case {
  const char* name;
  KvType type;
  int head_dim, page_size, n_kv_heads, n_heads, window;
  float softcap;
};

const Case kCases[] = {
    {"SmolLM2", KvType::kF16, 64, 16, 3, 9, 0, 0},
    {"gemma, window", KvType::kF16, 256, 16, 1, 4, 20, 0},
    {"window of one", KvType::kF16, 64, 16, 1, 1, 1, 0},
    {"pages of 32, softcap", KvType::kF16, 128, 32, 2, 4, 0, 30.0f},
    {"head 80", KvType::kF16, 80, 16, 2, 2, 0, 0},
    {"head 72 (not a multiple of 16)", KvType::kF16, 72, 16, 1, 2, 7, 0},
    {"head 512, many heads", KvType::kF16, 512, 16, 1, 40, 0, 0},
    {"f32", KvType::kF32, 64, 16, 3, 9, 0, 0},
    {"q8_0", KvType::kQ8_0, 64, 16, 3, 9, 0, 0},
    {"q8_0, partial block, pages of 32", KvType::kQ8_0, 80, 32, 2, 4, 50, 0},
    {"q8_0, head 40 (reference)", KvType::kQ8_0, 40, 16, 1, 3, 0, 0},
};

constexpr int kTokens = 71;  // four full pages of 16 and seven slots

// Keys and values of kTokens tokens in a pool of shuffled pages, and queries for all of them.
struct Setup {
  AttentionParams p;
  std::unique_ptr<AlignedBytes> pool;
  std::vector<int32_t> table;
  std::vector<float> q, k, v;
  int n_pool_pages = 0;
};

std::unique_ptr<Setup> make_setup(const Case& c, const KernelTable& t, int n_tokens = kTokens) {
  auto s = std::make_unique<Setup>();
  KvLayout& l = s->p.layout;
  l = {c.type, c.page_size, c.n_kv_heads, c.head_dim, 0, 0};
  const size_t layer = t.kv_layer_bytes(l);
  l.layer_offset = layer;  // the second of three layers
  l.page_bytes = 3 * layer;
  s->n_pool_pages = std::max(12, n_tokens / c.page_size + 2);
  s->pool = std::make_unique<AlignedBytes>(l.page_bytes * s->n_pool_pages);
  for (size_t i = 0; i < l.page_bytes * s->n_pool_pages; i += 2) {
    const uint16_t nan = 0x7e00;
    memcpy(s->pool->data() + i, &nan, 2);
  }
  std::vector<int32_t> pages(s->n_pool_pages);
  for (int i = 0; i < s->n_pool_pages; ++i) pages[i] = i;
  std::shuffle(pages.begin(), pages.end(), std::mt19937(3));
  s->table.assign(pages.begin(), pages.begin() + (n_tokens + c.page_size - 1) / c.page_size);
  const size_t kv_dim = static_cast<size_t>(c.n_kv_heads) * c.head_dim;
  s->k = random_floats(n_tokens * kv_dim, 1.0f, 111);
  s->v = random_floats(n_tokens * kv_dim, 1.0f, 112);
  s->q = random_floats(static_cast<size_t>(n_tokens) * c.n_heads * c.head_dim, 1.5f, 113);
  for (int i = 0; i < n_tokens; ++i) {
    uint8_t* page = s->pool->data() + s->table[i / c.page_size] * l.page_bytes;
    t.kv_append(l, page, i % c.page_size, &s->k[i * kv_dim], &s->v[i * kv_dim]);
  }
  s->p.pool = s->pool->data();
  s->p.page_table = s->table.data();
  s->p.q = s->q.data();
  s->p.q_stride = s->p.out_stride = int64_t{c.n_heads} * c.head_dim;
  s->p.n_heads = c.n_heads;
  s->p.n_tokens = n_tokens;
  s->p.window = c.window;
  s->p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  s->p.softcap = c.softcap;
  return s;
}

// All tokens, in calls of `step` tokens; with `as_chunks` each call is a chunk of its own
// (first_pos moves).
std::vector<float> attend(const KernelTable& t, const Setup& s, int step, bool as_chunks) {
  std::vector<float> out(s.q.size(), -5.0f);
  for (int begin = 0; begin < kTokens; begin += step) {
    AttentionParams p = s.p;
    const int n = std::min(step, kTokens - begin);
    p.out = out.data();
    int from = begin;
    if (as_chunks) {
      p.first_pos = begin;
      p.n_tokens = n;
      p.q += begin * p.q_stride;
      p.out += begin * p.out_stride;
      from = 0;
    }
    AlignedBytes scratch(t.attention_scratch_bytes(p, n));
    for (int h = 0; h < p.layout.n_kv_heads; ++h) t.attention(p, h, from, from + n, scratch.data());
  }
  return out;
}

// Roundings: the score's chain (head_dim + 5), twice through exp; the sums over keys; exp and tanh.
double bound_of(const Case& c, const Setup& s) {
  double score = 0, value = 0;
  const size_t n_q = s.q.size() / c.head_dim, n_k = s.k.size() / c.head_dim;
  for (size_t i = 0; i < n_q; i += 7) {  // a sample of queries, doubled below for the rest
    for (size_t j = 0; j < n_k; ++j) {
      double sum = 0;
      for (int d = 0; d < c.head_dim; ++d) {
        sum += std::abs(static_cast<double>(s.q[i * c.head_dim + d]) *
                        static_cast<double>(s.k[j * c.head_dim + d]));
      }
      score = std::max(score, sum);
    }
  }
  for (float v : s.v) value = std::max(value, std::abs(static_cast<double>(v)));
  double score_error = 2 * score * static_cast<double>(s.p.scale) * (c.head_dim + 5) * kEps;
  if (c.softcap > 0) score_error += 16 * kEps * static_cast<double>(c.softcap);
  return value * (2 * score_error + (kTokens + 32) * kEps);
}

}  // namespace

TEST_CASE("attention agrees with the reference") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const Case& c : kCases) {
    const auto s = make_setup(c, *t);
    const auto s_ref = make_setup(c, kernel_table_ref());
    const auto got = attend(*t, *s, kTokens, false),
               want = attend(kernel_table_ref(), *s_ref, kTokens, false);
    const double bound = bound_of(c, *s);
    WorstError worst(std::string("attention ") + c.name);
    for (size_t i = 0; i < got.size(); ++i) {
      worst.add(static_cast<double>(got[i]), static_cast<double>(want[i]), bound,
                static_cast<int64_t>(i));
    }
    worst.check();
  }
}

TEST_CASE("the reference is softmax attention") {
  const Case c = {"plain", KvType::kF16, 16, 16, 1, 2, 5, 3.0f};
  const auto s = make_setup(c, kernel_table_ref());
  const auto got = attend(kernel_table_ref(), *s, kTokens, false);
  for (int pos : {0, 1, 4, 5, 6, 40, kTokens - 1}) {
    for (int h = 0; h < 2; ++h) {
      double sum = 0;
      std::vector<double> out(16);
      for (int key = std::max(0, pos - 4); key <= pos; ++key) {
        double score = 0;
        for (int d = 0; d < 16; ++d) {
          const float k = half_to_float(float_to_half(s->k[key * 16 + d]));
          score += static_cast<double>(s->q[(pos * 2 + h) * 16 + d]) * static_cast<double>(k);
        }
        const double w = std::exp(3.0 * std::tanh(score * 0.25 / 3.0));
        sum += w;
        for (int d = 0; d < 16; ++d) {
          out[d] += w * static_cast<double>(half_to_float(float_to_half(s->v[key * 16 + d])));
        }
      }
      for (int d = 0; d < 16; ++d) {
        CHECK(std::abs(static_cast<double>(got[(pos * 2 + h) * 16 + d]) - out[d] / sum) < 1e-6);
      }
    }
  }
}

TEST_CASE("attention does not depend on which rows share a call") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const Case& c : kCases) {
    const auto s = make_setup(c, *t);
    const auto whole = attend(*t, *s, kTokens, false);
    for (int step : {1, 2, 5, 16, 17, 64}) {
      for (bool as_chunks : {false, true}) {
        const auto parts = attend(*t, *s, step, as_chunks);
        INFO(c.name << " step " << step << " chunks " << as_chunks);
        CHECK(memcmp(whole.data(), parts.data(), whole.size() * 4) == 0);
      }
    }
  }
}

// Long enough for three parts.
constexpr int kLongTokens = 2 * kAttentionPartKeys + 90;
const Case kLongCases[] = {
    {"f16", KvType::kF16, 64, 16, 1, 3, 0, 0},
    {"f16, window over two parts", KvType::kF16, 64, 32, 1, 2, 300, 20.0f},
    {"q8_0", KvType::kQ8_0, 80, 16, 1, 3, 0, 0},
    {"f32", KvType::kF32, 64, 16, 1, 1, 0, 0},
    {"head 72 (reference)", KvType::kF16, 72, 16, 1, 1, 0, 0},
};

TEST_CASE("attention in parts by several callers has the bits of one call") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const Case& c : kLongCases) {
    const auto s = make_setup(c, *t, kLongTokens);
    AttentionParams& p = s->p;
    std::vector<float> whole(p.q_stride), joined(p.q_stride), want(p.q_stride);
    // One token, as a call of its own, in parts, and among its neighbours in a prefill.
    for (int token : {kLongTokens - 1, 2 * kAttentionPartKeys, 2 * kAttentionPartKeys - 1, 5}) {
      INFO(c.name << " token " << token);
      std::vector<float> all(s->q.size());
      AlignedBytes scratch(t->attention_scratch_bytes(p, kLongTokens));
      p.out = all.data();
      t->attention(p, 0, token > 20 ? token - 20 : 0, token + 1, scratch.data());
      p.out = whole.data() - token * p.out_stride;
      t->attention(p, 0, token, token + 1, scratch.data());
      CHECK(memcmp(whole.data(), &all[token * p.out_stride], whole.size() * 4) == 0);

      const int first_key = c.window > 0 ? std::max(0, token - c.window + 1) : 0;
      const int first = first_key / kAttentionPartKeys;
      const int n_parts = token / kAttentionPartKeys + 1 - first;
      const int64_t record = attention_record_floats(c.head_dim), stride = c.n_heads * record + 16;
      std::vector<float> records(stride * n_parts, -7.0f);
      for (int i = n_parts - 1; i >= 1; --i) {  // in any order
        t->attention_parts(p, 0, token, token + 1, first + i, first + i + 1, &records[i * stride], stride,
                           scratch.data());
      }
      t->attention_parts(p, 0, token, token + 1, first, first + 1, &records[0], stride, scratch.data());
      for (int h = 0; h < c.n_heads; ++h) {
        t->attention_join(p.layout, &records[h * record], n_parts, stride, &joined[h * c.head_dim],
                          scratch.data());
      }
      CHECK(memcmp(whole.data(), joined.data(), whole.size() * 4) == 0);
      std::fill(joined.begin(), joined.end(), 0.0f);
      t->attention_parts(p, 0, token, token + 1, first, first + n_parts, &records[0], stride, scratch.data());
      for (int h = 0; h < c.n_heads; ++h) {
        t->attention_join(p.layout, &records[h * record], n_parts, stride, &joined[h * c.head_dim],
                          scratch.data());
      }
      CHECK(memcmp(whole.data(), joined.data(), whole.size() * 4) == 0);
      if (n_parts > 1) {  // a part left out is seen
        t->attention_join(p.layout, &records[0], n_parts - 1, stride, &joined[0], scratch.data());
        CHECK(memcmp(whole.data(), joined.data(), c.head_dim * 4) != 0);
      }
    }
  }
}

// A chunk's rows do not all see the same parts: the last few may reach into one that the first do not, and with a
// window the first into one that the last have left.
TEST_CASE("neighbouring tokens in parts have the bits of one call") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const Case& c : kLongCases) {
    const auto s = make_setup(c, *t, kLongTokens);
    AttentionParams& p = s->p;
    std::vector<float> whole(s->q.size()), joined(s->q.size());
    AlignedBytes scratch(t->attention_scratch_bytes(p, kLongTokens));
    const int64_t record = attention_record_floats(c.head_dim);
    for (const auto& [begin, end] : {std::pair{0, 3}, {kAttentionPartKeys - 3, kAttentionPartKeys + 2},
                                     {kLongTokens - 200, kLongTokens}, {2 * kAttentionPartKeys - 1, kLongTokens}}) {
      INFO(c.name << " tokens " << begin << " to " << end);
      p.out = whole.data();
      t->attention(p, 0, begin, end, scratch.data());
      const int first = (c.window > 0 ? std::max(0, begin - c.window + 1) : 0) / kAttentionPartKeys;
      const int n_parts = (end - 1) / kAttentionPartKeys + 1 - first;
      const int64_t stride = (end - begin) * c.n_heads * record + 16;
      std::vector<float> records(stride * n_parts, -7.0f);
      for (int i = n_parts - 1; i >= 0; i -= 2) {  // in any order, one or two at once
        const int from = std::max(0, i - 1);
        t->attention_parts(p, 0, begin, end, first + from, first + i + 1, &records[from * stride], stride,
                           scratch.data());
      }
      for (int token = begin; token < end; ++token) {
        for (int h = 0; h < c.n_heads; ++h) {
          const int64_t row = int64_t{token} * c.n_heads + h;
          t->attention_join(p.layout, &records[((token - begin) * c.n_heads + h) * record], n_parts, stride,
                            &joined[row * c.head_dim], scratch.data());
        }
      }
      const size_t at = static_cast<size_t>(begin * p.out_stride), n = static_cast<size_t>((end - begin) * p.out_stride);
      CHECK(memcmp(&whole[at], &joined[at], n * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("long attention agrees with the reference") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const Case& c : kLongCases) {
    const auto s = make_setup(c, *t, kLongTokens);
    const auto s_ref = make_setup(c, kernel_table_ref(), kLongTokens);
    const double bound = bound_of(c, *s) * kLongTokens / kTokens;
    WorstError worst(std::string("long attention ") + c.name);
    std::vector<float> got(s->q.size()), want(s->q.size());
    AlignedBytes scratch(t->attention_scratch_bytes(s->p, 1) +
                         kernel_table_ref().attention_scratch_bytes(s->p, 1));
    s->p.out = got.data();
    s_ref->p.out = want.data();
    for (int token = 0; token < kLongTokens; token += 53) {
      t->attention(s->p, 0, token, token + 1, scratch.data());
      kernel_table_ref().attention(s_ref->p, 0, token, token + 1, scratch.data());
      for (int64_t i = token * s->p.out_stride; i < (token + 1) * s->p.out_stride; ++i) {
        worst.add(static_cast<double>(got[i]), static_cast<double>(want[i]), bound, i);
      }
    }
    worst.check();
  }
}

// Two keys, scores 0 and x: the output is 2^x v / (1 + 2^x), v and the score exact.
TEST_CASE("the exponential of attention is within its bound") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const Case c = {"exp2", KvType::kF32, 16, 16, 1, 1, 0, 0};
  const auto s = make_setup(c, *t, 2);
  std::vector<float> q(16, 0.0f), k0(16, 0.0f), k1(16, 0.0f), v0(16, 0.0f), v1(16, 1.0f), out(16);
  q[0] = 1;
  s->p.q = q.data();
  s->p.out = out.data();
  s->p.scale = 1.0f;
  s->p.first_pos = 1;
  s->p.n_tokens = 1;
  AlignedBytes scratch(t->attention_scratch_bytes(s->p, 1));
  uint8_t* page = s->pool->data() + s->table[0] * s->p.layout.page_bytes;
  t->kv_append(s->p.layout, page, 0, k0.data(), v0.data());
  WorstError worst("2^x of attention");
  for (int i = 0; i <= 4000; ++i) {
    k1[0] = -static_cast<float>(i) * 0.02173f;
    t->kv_append(s->p.layout, page, 1, k1.data(), v1.data());
    t->attention(s->p, 0, 0, 1, scratch.data());
    const double e = std::exp(static_cast<double>(k1[0]));
    // exp2_down's 2^-22, the roundings of x log2(e) (two of them, in proportion to x), sum, quotient.
    const double bound = std::ldexp(1.0, -22) + (std::abs(k1[0]) * 1.5 * 2 + 3) * kEps;
    worst.add(static_cast<double>(out[3]), e / (1 + e), bound * e / (1 + e), i);
  }
  worst.check();
}

TEST_CASE("pages that left the window may be gone") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const Case& c = kCases[1];
  const auto s = make_setup(c, *t);
  const auto whole = attend(*t, *s, kTokens, false);
  s->p.first_pos = kTokens - 1;
  s->p.n_tokens = 1;
  s->p.q += (kTokens - 1) * s->p.q_stride;
  s->table[0] = s->table[1] = s->table[2] = -1;  // the window of 20 begins at position 51
  std::vector<float> out(s->p.q_stride);
  s->p.out = out.data();
  AlignedBytes scratch(t->attention_scratch_bytes(s->p, 1));
  t->attention(s->p, 0, 0, 1, scratch.data());
  CHECK(memcmp(out.data(), &whole[(kTokens - 1) * s->p.q_stride], out.size() * 4) == 0);
}

TEST_CASE("kv_append writes the reference's bytes and nothing else") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const Case& c : kCases) {
    const auto got = make_setup(c, *t), want = make_setup(c, kernel_table_ref());
    REQUIRE(t->kv_layer_bytes(got->p.layout) == kernel_table_ref().kv_layer_bytes(want->p.layout));
    INFO(c.name);
    CHECK(memcmp(got->pool->data(), want->pool->data(),
                 got->p.layout.page_bytes * got->n_pool_pages) == 0);
  }
}
