// Ops on rows of floats, as a decode step (one row, in the cache) and as a prefill (many rows, from memory) sees
// them: nanoseconds a row, GB/s read and written, and the share of the read bandwidth for the latter. Checked
// against the reference first.
//   rows_bench [column [threads]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "tests/bench/bench_setup.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

constexpr int64_t kRow = 1536;
constexpr int64_t kManyRows = 8192;  // 48 MB a buffer and thread

// One thread's buffers: a, b are read, out is written.
struct Buffers {
  std::vector<float> a, b, out;
  std::unique_ptr<AlignedBytes> act;
};

// n floats, the same row again and again.
Buffers make_buffers(const KernelTable& t, int64_t n) {
  const std::vector<float> row = random_floats(kRow, 1.0f, 2), other = random_floats(kRow, 1.0f, 3);
  Buffers s;
  for (int64_t at = 0; at < n; at += kRow) {
    s.a.insert(s.a.end(), row.begin(), row.end());
    s.b.insert(s.b.end(), other.begin(), other.end());
  }
  s.out = s.a;
  s.act = std::make_unique<AlignedBytes>(t.act_row_bytes(kRow));
  return s;
}

struct Op {
  const char* name;
  double bytes;  // read and written for each float of a row
  std::function<void(const KernelTable& t, Buffers* s, int64_t row)> run;
};

std::vector<Op> list_ops(const std::vector<float>& weight, KvLayout layout, AlignedBytes* pages) {
  std::vector<Op> ops;
  ops.push_back({"rms_norm", 8, [&](const KernelTable& t, Buffers* s, int64_t r) {
                   t.rms_norm(&s->a[r * kRow], weight.data(), 1e-5f, kRow, &s->out[r * kRow]);
                 }});
  ops.push_back({"rope", 8, [&](const KernelTable& t, Buffers* s, int64_t r) {
                   t.rope(&s->out[r * kRow], kRow / 64, 64, 64, weight.data(), true);
                 }});
  ops.push_back({"silu_mul", 12, [](const KernelTable& t, Buffers* s, int64_t r) {
                   t.silu_mul(&s->a[r * kRow], &s->b[r * kRow], kRow, &s->out[r * kRow]);
                 }});
  ops.push_back({"gelu_tanh_mul", 12, [](const KernelTable& t, Buffers* s, int64_t r) {
                   t.gelu_tanh_mul(&s->a[r * kRow], &s->b[r * kRow], kRow, &s->out[r * kRow]);
                 }});
  ops.push_back({"add", 12, [](const KernelTable& t, Buffers* s, int64_t r) {
                   t.add(&s->a[r * kRow], kRow, &s->out[r * kRow]);
                 }});
  ops.push_back({"quantize_act", 4, [](const KernelTable& t, Buffers* s, int64_t r) {
                   t.quantize_act(&s->a[r * kRow], kRow, s->act->data());
                 }});
  ops.push_back({"log_sum_exp", 4, [](const KernelTable& t, Buffers* s, int64_t r) {
                   s->out[r * kRow] = static_cast<float>(t.log_sum_exp(&s->a[r * kRow], kRow));
                 }});
  ops.push_back({layout.type == KvType::kF16 ? "kv_append f16" : "kv_append q8_0", 4,
                 [layout, pages](const KernelTable& t, Buffers* s, int64_t r) {
                   const size_t page = static_cast<size_t>(r / layout.page_size % 16) * layout.page_bytes;
                   t.kv_append(layout, pages->data() + page, static_cast<int>(r % layout.page_size),
                               &s->a[r * kRow], &s->a[r * kRow + kRow / 2]);
                 }});
  return ops;
}

// out of the first row by both columns, with a bound for values of a few units.
void check(const KernelTable& t, const Op& op) {
  Buffers got = make_buffers(t, kRow), want = make_buffers(t, kRow);
  op.run(t, &got, 0);
  op.run(kernel_table_ref(), &want, 0);
  for (int64_t i = 0; i < kRow; ++i) {
    const float allowed = 1e-5f * (1 + std::abs(want.out[i]));
    if (std::abs(got.out[i] - want.out[i]) <= allowed) continue;
    std::fprintf(stderr, "%s %s: value %ld is %g, reference %g\n", t.isa, op.name, static_cast<long>(i),
                 static_cast<double>(got.out[i]), static_cast<double>(want.out[i]));
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const BenchSetup s = bench_setup(argc, argv);
  const KernelTable& t = *s.table;
  const std::vector<float> weight = random_floats(kRow, 1.0f, 1);
  for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
    KvLayout layout = {type, 16, kRow / 2 / 64, 64, 0, 0};
    layout.page_bytes = t.kv_layer_bytes(layout);
    AlignedBytes pages(16 * layout.page_bytes);
    const std::vector<Op> ops = list_ops(weight, layout, &pages);
    for (const Op& op : ops) {
      if (type == KvType::kQ8_0 && &op != &ops.back()) continue;  // the others are the same
      check(t, op);
      std::vector<Buffers> buffers;
      for (int i = 0; i < s.n_threads; ++i) buffers.push_back(make_buffers(t, kRow * kManyRows));
      const auto time = [&](int64_t rows, int64_t rounds) {
        return bench_seconds(s.n_threads, 0.15, [&](int thread) {
                 for (int64_t i = 0; i < rounds; ++i) {
                   for (int64_t r = 0; r < rows; ++r) op.run(t, &buffers[static_cast<size_t>(thread)], r);
                 }
               }) / static_cast<double>(rows * rounds);
      };
      const double cached = time(1, 2000), streamed = time(kManyRows, 1);
      const double gb = op.bytes * kRow * s.n_threads / 1e9;
      std::printf("%-15s cached %7.0f ns a row of %ld, %6.1f GB/s | from memory %7.0f ns, %5.1f GB/s, %3.0f %% of read "
                  "bandwidth\n",
                  op.name, 1e9 * cached, static_cast<long>(kRow), gb / cached, 1e9 * streamed, gb / streamed,
                  100 * gb * 1e9 / streamed / s.read_bytes_per_s);
    }
  }
  return 0;
}
