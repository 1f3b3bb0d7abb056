// Attention over pages: prefill of 512, 2,048 and 8,192 tokens and one decode step behind as many,
// for SmolLM2, gemma-3-270m and Llama-3.2-1B shapes. Prints GFLOPS of the products and their share of
// this machine's fma peak (prefill), GB/s of K and V and their share of its read bandwidth (decode),
// and the ratio to a plain three-pass attention (three_pass.h). Results are checked first.
//   attention_bench [column [threads [name filter]]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/bench/bench_setup.h"
#include "tests/bench/three_pass.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

struct Shape {
  const char* name;
  int head_dim, n_kv_heads, n_heads;
  KvType type;
};

constexpr Shape kShapes[] = {
    {"SmolLM2 f16", 64, 3, 9, KvType::kF16},       {"SmolLM2 q8_0", 64, 3, 9, KvType::kQ8_0},
    {"gemma-3-270m f16", 256, 1, 4, KvType::kF16}, {"gemma-3-270m q8_0", 256, 1, 4, KvType::kQ8_0},
    {"Llama-3.2-1B f16", 64, 8, 32, KvType::kF16},
};

// Pages and queries of one layer; only the first `heads` KV heads are computed, so that long
// contexts are timed in seconds.
struct Setup {
  AttentionParams p;
  std::unique_ptr<AlignedBytes> pool;
  std::vector<int32_t> table;
  std::vector<float> kv, q, out;
  size_t kv_dim;
};

std::unique_ptr<Setup> make_setup(const KernelTable& t, const Shape& shape, int first_pos,
                                  int n_tokens) {
  auto s = std::make_unique<Setup>();
  AttentionParams& p = s->p;
  p.layout = {shape.type, 16, shape.n_kv_heads, shape.head_dim, 0, 0};
  p.layout.page_bytes = t.kv_layer_bytes(p.layout);
  const int n_keys = first_pos + n_tokens, n_pages = (n_keys + 15) / 16;
  s->pool = std::make_unique<AlignedBytes>(p.layout.page_bytes * static_cast<size_t>(n_pages));
  s->table.resize(static_cast<size_t>(n_pages));
  for (int i = 0; i < n_pages; ++i) s->table[i] = static_cast<int>(int64_t{i} * 7919 % n_pages);
  s->kv_dim = static_cast<size_t>(shape.n_kv_heads * shape.head_dim);
  s->kv = random_floats(s->kv_dim * static_cast<size_t>(n_keys), 1.0f, 1);
  for (int i = 0; i < n_keys; ++i) {
    uint8_t* page = s->pool->data() + static_cast<size_t>(s->table[i / 16]) * p.layout.page_bytes;
    t.kv_append(p.layout, page, i % 16, &s->kv[i * s->kv_dim], &s->kv[i * s->kv_dim]);
  }
  p.n_heads = shape.n_heads;
  p.q_stride = p.out_stride = int64_t{shape.n_heads} * shape.head_dim;
  s->q = random_floats(static_cast<size_t>(p.q_stride * n_tokens), 1.0f, 2);
  s->out.resize(s->q.size());
  p.q = s->q.data();
  p.out = s->out.data();
  p.pool = s->pool->data();
  p.page_table = s->table.data();
  p.first_pos = first_pos;
  p.n_tokens = n_tokens;
  p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  return s;
}

void check(const KernelTable& t, const Setup& s) {
  AttentionParams p = s.p;
  std::vector<float> want(s.out.size());
  p.out = want.data();
  AlignedBytes scratch(kernel_table_ref().attention_scratch_bytes(p, p.n_tokens));
  const int last = p.n_tokens - 1;
  kernel_table_ref().attention(p, 0, last, last + 1, scratch.data());
  const int n = p.n_heads / p.layout.n_kv_heads * p.layout.head_dim;
  for (int64_t i = last * p.out_stride; i < last * p.out_stride + n; ++i) {
    if (std::abs(s.out[i] - want[i]) < 1e-4f) continue;
    std::fprintf(stderr, "%s: attention output %ld is %g, reference %g\n", t.isa,
                 static_cast<long>(i), static_cast<double>(s.out[i]), static_cast<double>(want[i]));
    std::exit(1);
  }
}

// Seconds for the heads of KV heads [0, heads).
double time_ours(const BenchSetup& b, Setup* s, int heads) {
  const KernelTable& t = *b.table;
  const AttentionParams& p = s->p;
  std::vector<std::unique_ptr<AlignedBytes>> scratch;
  for (int i = 0; i < b.n_threads; ++i) {
    scratch.push_back(std::make_unique<AlignedBytes>(t.attention_scratch_bytes(p, p.n_tokens)));
  }
  constexpr int kTokensAtOnce = 32;  // work items: (kv head, 32 tokens), dealt in turn
  const int n_items = heads * ((p.n_tokens + kTokensAtOnce - 1) / kTokensAtOnce);
  const double seconds = bench_seconds(b.n_threads, 0.3, [&](int thread) {
    for (int item = thread; item < n_items; item += b.n_threads) {
      const int begin = item / heads * kTokensAtOnce;
      const int end = std::min(begin + kTokensAtOnce, p.n_tokens);
      t.attention(p, item % heads, begin, end, scratch[thread]->data());
    }
  });
  check(t, *s);
  return seconds;
}

// Seconds of one thread for one head of KV head 0.
double time_three_pass(ThreePassFunction function, const Setup& s, bool skip_unseen) {
  const int D = s.p.layout.head_dim;
  const int64_t T = s.p.n_tokens, n_keys = s.p.first_pos + T, N = (n_keys + 63) / 64 * 64;
  std::vector<float> q(T * D), k(D * N), v(N * D), scores(T * N), out(T * D);
  for (int64_t t = 0; t < T; ++t) std::copy_n(&s.q[t * s.p.q_stride], D, &q[t * D]);
  for (int64_t i = 0; i < n_keys; ++i) {
    std::copy_n(&s.kv[i * s.kv_dim], D, &v[i * D]);
    for (int64_t d = 0; d < D; ++d) k[d * N + i] = s.kv[i * s.kv_dim + d];
  }
  const ThreePass a = {q.data(), k.data(), v.data(),      scores.data(), out.data(), T,
                       N,        D,        s.p.first_pos, s.p.scale,     skip_unseen};
  const double seconds = bench_seconds(1, 0.3, [&](int) { function(a); });
  for (int64_t i = (T - 1) * D; i < T * D; ++i) {  // pages are rounded to halves or bytes, this is not
    if (std::abs(out[i] - s.out[(T - 1) * s.p.out_stride + i % D]) < 2e-2f) continue;
    std::fprintf(stderr, "three passes: output %ld is %g, ours %g\n", static_cast<long>(i),
                 static_cast<double>(out[i]),
                 static_cast<double>(s.out[(T - 1) * s.p.out_stride + i % D]));
    std::exit(1);
  }
  return seconds;
}

void prefill(const BenchSetup& b, ThreePassFunction plain, const Shape& shape, int n_tokens) {
  const auto s = make_setup(*b.table, shape, 0, n_tokens);
  const int heads = n_tokens > 1024 ? 1 : shape.n_kv_heads, group = shape.n_heads / shape.n_kv_heads;
  const double seconds = time_ours(b, s.get(), heads);
  const double flops = 4.0 * n_tokens * 0.5 * (n_tokens + 1) * heads * group * shape.head_dim;
  // An fma of floats is half of the four-way byte products of peak_int8 in number, a quarter in
  // operations, in every x86 column that has them.
  std::printf("%-18s prefill %5d: %7.1f GFLOPS, %4.0f %% of int8 peak / 4", shape.name, n_tokens,
              flops / seconds / 1e9, 400 * flops / seconds / b.int8_ops_per_s);
  if (plain && b.n_threads == 1) {
    const double one_head = seconds / heads / group;
    std::printf("; three passes / ours: %.2f (all keys), %.2f (unseen left out)",
                time_three_pass(plain, *s, false) / one_head,
                time_three_pass(plain, *s, true) / one_head);
  }
  std::printf("\n");
}

// One layer of many, so that K and V come from memory: as many copies as fill 256 MB take turns.
void decode(const BenchSetup& b, const Shape& shape, int n_keys) {
  const KernelTable& t = *b.table;
  const auto s = make_setup(t, shape, n_keys - 1, 1);
  const int D = shape.head_dim, n_parts = (n_keys + kAttentionPartKeys - 1) / kAttentionPartKeys;
  const int group = shape.n_heads / shape.n_kv_heads;
  const size_t pool_bytes = s->p.layout.page_bytes * s->table.size();
  const size_t n_copies = std::max<size_t>(2, (size_t{256} << 20) / pool_bytes);
  AlignedBytes copies(pool_bytes * n_copies);
  for (size_t i = 0; i < n_copies; ++i) {
    std::memcpy(copies.data() + i * pool_bytes, s->pool->data(), pool_bytes);
  }
  const int64_t record = attention_record_floats(D);
  std::vector<float> records(static_cast<size_t>(n_parts * shape.n_heads * record));
  std::vector<std::unique_ptr<AlignedBytes>> scratch;
  for (int i = 0; i < b.n_threads; ++i) {
    scratch.push_back(std::make_unique<AlignedBytes>(t.attention_scratch_bytes(s->p, 1)));
  }
  // As the forward pass shares out a long row: parts, then heads to join.
  const double seconds = bench_seconds(b.n_threads, 0.5, [&](int thread) {
    for (size_t i = 0; i < n_copies; ++i) {
      AttentionParams p = s->p;
      p.pool = copies.data() + i * pool_bytes;
      const int n_items = n_parts * shape.n_kv_heads;  // a run of neighbouring parts for each thread
      for (int item = n_items * thread / b.n_threads; item < n_items * (thread + 1) / b.n_threads;) {
        const int kv_head = item / n_parts, part = item % n_parts;
        const int end = std::min(n_parts, part + n_items * (thread + 1) / b.n_threads - item);
        float* at = &records[static_cast<size_t>((part * shape.n_heads + kv_head * group) * record)];
        t.attention_parts(p, kv_head, 0, 1, part, end, at, shape.n_heads * record,
                          scratch[thread]->data());
        item += end - part;
      }
    }
  }) / static_cast<double>(n_copies);
  for (int h = 0; h < shape.n_heads; ++h) {
    t.attention_join(s->p.layout, &records[static_cast<size_t>(h * record)], n_parts,
                     shape.n_heads * record, &s->out[static_cast<size_t>(h * D)], scratch[0]->data());
  }
  check(t, *s);
  std::printf("%-18s decode behind %5d: %8.1f us, %5.1f GB/s, %3.0f %% of read bandwidth, %6.1f GFLOPS\n",
              shape.name, n_keys, 1e6 * seconds, static_cast<double>(pool_bytes) / seconds / 1e9,
              100 * static_cast<double>(pool_bytes) / seconds / b.read_bytes_per_s,
              4.0 * n_keys * shape.n_heads * D / seconds / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const BenchSetup b = bench_setup(argc, argv);
  ThreePassFunction plain = nullptr;
#if defined(__x86_64__)
  if (!std::strcmp(b.table->isa, "avx2")) plain = three_pass_avx2;
  if (!std::strncmp(b.table->isa, "avx512", 6)) plain = three_pass_avx512vnni;
#endif
  for (const Shape& shape : kShapes) {
    if (argc > 3 && !std::strstr(shape.name, argv[3])) continue;
    for (int n : {512, 2048, 8192}) prefill(b, plain, shape, n);
    for (int n : {512, 2048, 8192}) decode(b, shape, n);
  }
  return 0;
}
