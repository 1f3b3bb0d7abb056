// Matmul of F32, F16 and BF16 weights with float activations (matmul_dense): decode (M = 1, weights from
// memory) as GB/s and share of the read bandwidth, M = 16 and 512 as GFLOPS and share of the fma peak
// (a quarter of the int8 peak), and oneDNN beside it where it is installed. Checked first.
//   dense_bench [column [threads]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "tests/bench/bench_setup.h"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"
#ifdef TANDEM_BENCH_ONEDNN
#include "tests/bench/onednn_matmul.h"
#endif

using namespace tandem;

namespace {

struct Problem {
  RandomMatrix source;
  std::unique_ptr<AlignedBytes> packed;
  PackedMatrix w;
  int64_t M, ldx;  // rows of x an odd number of cache lines apart
  std::vector<float> x, y;
};

// N rows from `distinct` random ones, so that making them does not take the whole time.
Problem make_problem(const KernelTable& t, const char* type, int64_t N, int64_t K, int64_t M) {
  Problem p;
  const int64_t distinct = 64;
  p.source = random_matrix(type, distinct, K, 3);
  const size_t part = t.packed_bytes(p.source.traits->type, distinct, K);
  const size_t bytes = t.packed_bytes(p.source.traits->type, N, K);
  p.packed = std::make_unique<AlignedBytes>(bytes);
  t.pack_tiles(p.source.traits->type, p.source.rows.data(), distinct, K, 0, distinct / kTileRows,
               p.packed->data());
  for (size_t at = part; at < bytes; at += part) {
    std::copy_n(p.packed->data(), std::min(part, bytes - at), p.packed->data() + at);
  }
  p.w = {p.source.traits->type, N, K, p.packed->data()};
  p.M = M;
  p.ldx = (K / 16 | 1) * 16;
  p.x = random_floats(static_cast<size_t>(M * p.ldx), 1.0f, 4);
  p.y.assign(static_cast<size_t>(M * N), 0.0f);
  return p;
}

void check(const Problem& p, const char* who, const float* y, double relative) {
  const int64_t K = p.w.n_cols;
  for (int64_t n = 0; n < p.source.n_rows; ++n) {
    double want = 0, magnitude = 0;
    const float* x = &p.x[(p.M - 1) * p.ldx];
    for (int64_t k = 0; k < K; ++k) {
      const double product = static_cast<double>(x[k]) * static_cast<double>(p.source.values[n * K + k]);
      want += product;
      magnitude += std::abs(product);
    }
    const double got = static_cast<double>(y[(p.M - 1) * p.w.n_rows + n]);
    if (std::abs(got - want) <= relative * magnitude) continue;
    std::fprintf(stderr, "%s: %s output %ld is %g, should be %g\n", who, p.source.traits->name,
                 static_cast<long>(n), got, want);
    std::exit(1);
  }
}

double time_ours(const BenchSetup& s, Problem* p) {
  const int64_t tiles = p->w.n_rows / kTileRows, K = p->w.n_cols;
  const double seconds = bench_seconds(s.n_threads, 0.4, [&](int i) {
    // Rows in blocks that stay in the second cache, as the forward pass takes them.
    const int64_t block = (384 << 10) / (4 * std::min<int64_t>(K, 1024)) / 12 * 12;
    for (int64_t m = 0; m < p->M; m += block) {
      s.table->matmul_dense(p->w, tiles * i / s.n_threads, tiles * (i + 1) / s.n_threads,
                            p->x.data() + m * p->ldx, p->ldx, std::min(block, p->M - m),
                            p->y.data() + m * p->w.n_rows, p->w.n_rows);
    }
  });
  const bool is_rounded = p->w.type == GgmlType::kBF16;  // by some columns
  check(*p, s.table->isa, p->y.data(), is_rounded ? 0.004 : (static_cast<double>(K) + 1) * kEps);
  return seconds;
}

#ifdef TANDEM_BENCH_ONEDNN
// Seconds of one call on one thread; bfloat16 where the weights are.
double time_onednn(const Problem& p) {
  std::vector<float> w(static_cast<size_t>(p.w.n_rows * p.w.n_cols));
  for (size_t i = 0; i < w.size(); ++i) w[i] = p.source.values[i % p.source.values.size()];
  const bool as_bf16 = p.w.type == GgmlType::kBF16;
  std::vector<float> x(static_cast<size_t>(p.M * p.w.n_cols));
  for (int64_t m = 0; m < p.M; ++m) std::copy_n(&p.x[m * p.ldx], p.w.n_cols, &x[m * p.w.n_cols]);
  OneDnnMatmul matmul(p.M, p.w.n_rows, p.w.n_cols, x.data(), w.data(), as_bf16);
  const double seconds = bench_seconds(1, 0.4, [&](int) { matmul.run(); });
  check(p, "oneDNN", matmul.y().data(), as_bf16 ? 0.004 : static_cast<double>(p.w.n_cols) * kEps);
  return seconds;
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const BenchSetup s = bench_setup(argc, argv);
  for (const char* type : {"F32", "F16", "BF16"}) {
    for (const auto& [N, K] : {std::pair<int64_t, int64_t>{1536, 576}, {2048, 2048}, {2048, 8192}}) {
      const int64_t n_decode = (int64_t{256} << 20) / (4 * K) / 64 * 64;
      Problem decode = make_problem(*s.table, type, n_decode, K, 1);
      const double bytes = static_cast<double>(s.table->packed_bytes(decode.w.type, n_decode, K));
      const double decode_s = time_ours(s, &decode);
      std::printf("%-4s %5ld x %4ld | M=1 %5.1f GB/s %3.0f%% |", type, static_cast<long>(N),
                  static_cast<long>(K), bytes / decode_s / 1e9,
                  100 * bytes / decode_s / s.read_bytes_per_s);
      for (int64_t M : {16, 512}) {
        Problem p = make_problem(*s.table, type, N, K, M);
        const double ops = 2.0 * static_cast<double>(M * N * K), seconds = time_ours(s, &p);
        std::printf(" M=%-3ld %6.1f GFLOPS %3.0f%%", static_cast<long>(M), ops / seconds / 1e9,
                    400 * ops / seconds / s.int8_ops_per_s);
#ifdef TANDEM_BENCH_ONEDNN
        if (s.n_threads == 1) std::printf(" (oneDNN %6.1f)", ops / time_onednn(p) / 1e9);
#endif
        std::printf(" |");
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}
