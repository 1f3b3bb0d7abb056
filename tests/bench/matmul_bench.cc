// Matmul of every weight type: decode (M = 1, weights from memory) as GB/s and share of the
// measured read bandwidth, batches of decodes (M = 4 to 16, weights from memory) and prefill (M = 512) as GOPS and share of the measured int8 peak (a
// multiply-add of the model counts two operations, and takes 1.5 dot products where the weights'
// quants are the packed nibbles, else 2: one for each plane of the activations). Checked first.
//   matmul_bench [column [threads [type [K [N]]]]]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/bench/bench_setup.h"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

constexpr int64_t kRowsFromMemory = 65536;  // 50 MB and more
constexpr int64_t kBatches[] = {4, 6, 8, 12, 16};

struct Problem {
  RandomMatrix source;
  std::unique_ptr<AlignedBytes> packed, act;
  PackedMatrix w;
  int64_t M;
  std::vector<float> y;
};

int64_t tiles_of(const Problem& p) { return (p.w.n_rows + kTileRows - 1) / kTileRows; }

// N rows, `distinct` random ones over and over, so that making them does not take the whole time.
Problem make_problem(const KernelTable& t, const char* type, int64_t N, int64_t K, int64_t M) {
  Problem p;
  const int64_t distinct = std::min<int64_t>(N, 64);
  p.source = random_matrix(type, distinct, K, 3);
  p.packed = std::make_unique<AlignedBytes>(t.packed_bytes(p.source.traits->type, N, K));
  std::vector<uint8_t> rows;
  for (int64_t n = 0; n < N; n += distinct) rows.insert(rows.end(), p.source.rows.begin(), p.source.rows.end());
  t.pack_tiles(p.source.traits->type, rows.data(), N, K, 0, (N + kTileRows - 1) / kTileRows, p.packed->data());
  p.w = {p.source.traits->type, N, K, p.packed->data()};
  p.M = M;
  const std::vector<float> x = random_floats(static_cast<size_t>(M * K), 1.0f, 4);
  p.act = std::make_unique<AlignedBytes>(t.act_row_bytes(K) * static_cast<size_t>(M));
  for (int64_t m = 0; m < M; ++m) {
    t.quantize_act(x.data() + m * K, K,
                   p.act->data() + static_cast<size_t>(m) * t.act_row_bytes(K));
  }
  p.y.assign(static_cast<size_t>(M * N), 0.0f);
  return p;
}

double run(const KernelTable& t, Problem* p, int n_threads, double seconds) {
  const int64_t tiles = tiles_of(*p), N = p->w.n_rows;
  return bench_seconds(n_threads, seconds, [&](int i) {
    t.matmul(p->w, tiles * i / n_threads, tiles * (i + 1) / n_threads, p->act->data(), p->M,
             p->y.data(), N);
  });
}

// The first 64 outputs of the first row against the reference; bounds as in matmul_test.cc.
void check(const Problem& p, const KernelTable& t) {
  const KernelTable& ref = kernel_table_ref();
  AlignedBytes rows(ref.packed_bytes(p.w.type, p.source.n_rows, p.w.n_cols));
  ref.pack_tiles(p.w.type, p.source.rows.data(), p.source.n_rows, p.w.n_cols, 0,
                 p.source.n_rows / kTileRows, rows.data());
  const PackedMatrix w = {p.w.type, p.source.n_rows, p.w.n_cols, rows.data()};
  std::vector<float> want(static_cast<size_t>(p.source.n_rows));
  ref.matmul(w, 0, p.source.n_rows / kTileRows, p.act->data(), 1, want.data(), p.source.n_rows);
  for (int64_t n = 0; n < p.source.n_rows; ++n) {
    double magnitude = 0;  // activations of sigma 1 stay below 6
    for (int64_t k = 0; k < p.w.n_cols; ++k)
      magnitude += 6.0 * static_cast<double>(p.source.magnitudes[n * p.w.n_cols + k]);
    const double error = std::abs(static_cast<double>(p.y[n]) - static_cast<double>(want[n]));
    if (error <= (static_cast<double>(p.w.n_cols / 32) + 36) * kEps * magnitude) continue;
    std::fprintf(stderr, "%s: %s output %ld is %g, reference %g\n", t.isa, p.source.traits->name,
                 static_cast<long>(n), static_cast<double>(p.y[n]), static_cast<double>(want[n]));
    std::exit(1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const BenchSetup s = bench_setup(argc, argv);
  const KernelTable& t = *s.table;
  std::printf("%-11s %6s %6s | %9s %6s | %9s %6s |", "type", "K", "N", "M=1 GB/s", "share", "M=512 GOPS", "share");
  for (const int64_t M : kBatches) std::printf(" M=%-2ld GOPS  share", static_cast<long>(M));
  std::puts("");
  for (const char* type : kColumnTypes) {
    if (argc > 3 && std::strcmp(argv[3], type) != 0) continue;
    const int64_t K = argc > 4 ? std::atoi(argv[4]) : quant_traits_by_name(type)->block_size == 256 ? 2048 : 1536;
    const int64_t N = argc > 5 ? std::atoi(argv[5]) : 1536;
    Problem decode = make_problem(t, type, kRowsFromMemory, K, 1);
    const double decode_s = run(t, &decode, s.n_threads, 0.4);
    check(decode, t);
    const double bytes = static_cast<double>(t.packed_bytes(decode.w.type, decode.w.n_rows, K));
    Problem prefill = make_problem(t, type, N, K, 512);
    const double prefill_s = run(t, &prefill, s.n_threads, 0.4);
    check(prefill, t);
    const double ops = 2.0 * static_cast<double>(N * K);
    std::printf("%-11s %6ld %6ld | %9.1f %5.0f%% | %10.0f %5.0f%% |", type, static_cast<long>(K), static_cast<long>(kRowsFromMemory),
                bytes / decode_s / 1e9, 100 * bytes / decode_s / s.read_bytes_per_s, ops * 512 / prefill_s / 1e9,
                100 * ops * 512 / prefill_s / s.int8_ops_per_s);
    for (const int64_t M : kBatches) {
      Problem batch = make_problem(t, type, kRowsFromMemory, K, M);
      const double batch_ops = 2.0 * static_cast<double>(kRowsFromMemory * K * M) / run(t, &batch, s.n_threads, 0.3);
      check(batch, t);
      std::printf(" %9.0f %5.0f%%", batch_ops / 1e9, 100 * batch_ops / s.int8_ops_per_s);
    }
    std::puts("");
    std::fflush(stdout);
  }
  return 0;
}
