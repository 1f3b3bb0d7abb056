// Attention of a 512-token prefill and of one decode step behind 512 tokens, SmolLM2 and
// gemma-3-270m shapes: milliseconds a layer, and GFLOPS of the products. The result is checked
// first.
//   attention_bench [column [threads]]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/bench/bench_setup.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

struct Shape {
  const char* name;
  int head_dim, n_kv_heads, n_heads;
  KvType type;
};

void check(const KernelTable& t, AttentionParams p, const std::vector<float>& out) {
  std::vector<float> want(out.size());
  p.out = want.data();
  AlignedBytes scratch(kernel_table_ref().attention_scratch_bytes(p, p.n_tokens));
  const int last = p.n_tokens - 1;
  for (int h = 0; h < p.layout.n_kv_heads; ++h)
    kernel_table_ref().attention(p, h, last, last + 1, scratch.data());
  for (int64_t i = last * p.out_stride; i < (last + 1) * p.out_stride; ++i) {
    if (std::abs(out[i] - want[i]) < 1e-4f) continue;
    std::fprintf(stderr, "%s: attention output %ld is %g, reference %g\n", t.isa,
                 static_cast<long>(i), static_cast<double>(out[i]), static_cast<double>(want[i]));
    std::exit(1);
  }
}

void run(const BenchSetup& s, const Shape& shape, int first_pos, int n_tokens) {
  const KernelTable& t = *s.table;
  AttentionParams p;
  p.layout = {shape.type, 16, shape.n_kv_heads, shape.head_dim, 0, 0};
  p.layout.page_bytes = t.kv_layer_bytes(p.layout);
  const int n_keys = first_pos + n_tokens, n_pages = (n_keys + 15) / 16;
  AlignedBytes pool(p.layout.page_bytes * static_cast<size_t>(n_pages));
  std::vector<int32_t> table(static_cast<size_t>(n_pages));
  for (int i = 0; i < n_pages; ++i) table[i] = i;
  const size_t kv_dim = static_cast<size_t>(shape.n_kv_heads * shape.head_dim);
  const std::vector<float> kv = random_floats(kv_dim * static_cast<size_t>(n_keys), 1.0f, 1);
  for (int i = 0; i < n_keys; ++i) {
    t.kv_append(p.layout, pool.data() + static_cast<size_t>(i / 16) * p.layout.page_bytes, i % 16,
                &kv[i * kv_dim], &kv[i * kv_dim]);
  }
  p.n_heads = shape.n_heads;
  p.q_stride = p.out_stride = int64_t{shape.n_heads} * shape.head_dim;
  const std::vector<float> q = random_floats(static_cast<size_t>(p.q_stride * n_tokens), 1.0f, 2);
  std::vector<float> out(q.size());
  p.q = q.data();
  p.out = out.data();
  p.pool = pool.data();
  p.page_table = table.data();
  p.first_pos = first_pos;
  p.n_tokens = n_tokens;
  p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  std::vector<std::unique_ptr<AlignedBytes>> scratch;
  for (int i = 0; i < s.n_threads; ++i) {
    scratch.push_back(std::make_unique<AlignedBytes>(t.attention_scratch_bytes(p, n_tokens)));
  }
  constexpr int kTokensAtOnce = 16;  // work items: (kv head, 16 tokens), dealt in turn
  const int n_items = shape.n_kv_heads * ((n_tokens + kTokensAtOnce - 1) / kTokensAtOnce);
  const double seconds = bench_seconds(s.n_threads, 0.3, [&](int thread) {
    for (int item = thread; item < n_items; item += s.n_threads) {
      const int begin = item / shape.n_kv_heads * kTokensAtOnce;
      const int end = begin + kTokensAtOnce < n_tokens ? begin + kTokensAtOnce : n_tokens;
      t.attention(p, item % shape.n_kv_heads, begin, end, scratch[thread]->data());
    }
  });
  check(t, p, out);
  const double pairs = static_cast<double>(n_tokens) * (first_pos + 0.5 * (n_tokens + 1));
  const double flops = 4.0 * pairs * shape.n_heads * shape.head_dim;
  std::printf("%-20s %4d tokens behind %4d: %8.3f ms, %6.1f GFLOPS\n", shape.name, n_tokens,
              first_pos, 1e3 * seconds, flops / seconds / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  const BenchSetup s = bench_setup(argc, argv);
  const Shape shapes[] = {{"SmolLM2 f16", 64, 3, 9, KvType::kF16},
                          {"SmolLM2 q8_0", 64, 3, 9, KvType::kQ8_0},
                          {"gemma-3-270m f16", 256, 1, 4, KvType::kF16}};
  for (const Shape& shape : shapes) {
    run(s, shape, 0, 512);
    run(s, shape, 512, 1);
  }
  return 0;
}
