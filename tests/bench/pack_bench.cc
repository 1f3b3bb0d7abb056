// What happens to weights outside of products: packing a model's rows into tiles (GB/s read and written, and their share
// of the read bandwidth), one row of a packed matrix as floats (an embedding, nanoseconds), and the reference mode's
// matmul_f32 at M = 64 (GFLOPS and share of the fma peak, a quarter of the int8 peak). Checked first: every row read back
// is what the type's dequantizer gives, products are sums of its values.
//   pack_bench [column [threads [type]]]
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/bench/bench_setup.h"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

constexpr int64_t N = 4096, M = 64;

void fail(const KernelTable& t, const char* type, const char* what) {
  std::fprintf(stderr, "%s: %s %s\n", t.isa, type, what);
  std::exit(1);
}

void check_rows(const KernelTable& t, const RandomMatrix& source, const PackedMatrix& w) {
  std::vector<float> row(static_cast<size_t>(w.n_cols));
  for (int64_t r = 0; r < w.n_rows; r += 61) {
    t.packed_row(w, r, row.data());
    if (std::memcmp(row.data(), &source.values[r * w.n_cols], row.size() * sizeof(float)) != 0)
      fail(t, source.traits->name, "packed is not what it was");
  }
}

void check_products(const KernelTable& t, const RandomMatrix& source, const std::vector<float>& x, const std::vector<float>& y) {
  const int64_t K = source.n_cols;
  for (int64_t n = 0; n < 64; ++n) {
    double want = 0, magnitude = 0;
    for (int64_t k = 0; k < K; ++k) {
      want += static_cast<double>(source.values[n * K + k]) * static_cast<double>(x[k]);
      magnitude += static_cast<double>(source.magnitudes[n * K + k]) * std::abs(static_cast<double>(x[k]));
    }
    if (!(std::abs(static_cast<double>(y[n]) - want) <= (static_cast<double>(K) + 8) * kEps * magnitude))
      fail(t, source.traits->name, "products are wrong");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const BenchSetup s = bench_setup(argc, argv);
  const KernelTable& t = *s.table;
  std::printf("%-7s | %10s %6s | %14s | %14s %6s\n", "type", "pack GB/s", "share", "row of 1536 ns", "f32 M=64 GFLOPS", "share");
  for (const char* type : kColumnTypes) {
    if (argc > 3 && std::strcmp(argv[3], type) != 0) continue;
    const int64_t K = 1536, tiles = N / kTileRows;
    const RandomMatrix source = random_matrix(type, N, K, 3);
    AlignedBytes packed(t.packed_bytes(source.traits->type, N, K));
    const PackedMatrix w = {source.traits->type, N, K, packed.data()};
    const double pack_s = bench_seconds(s.n_threads, 0.2, [&](int i) {
      t.pack_tiles(w.type, source.rows.data(), N, K, tiles * i / s.n_threads, tiles * (i + 1) / s.n_threads, packed.data());
    });
    check_rows(t, source, w);
    std::vector<std::vector<float>> row(static_cast<size_t>(s.n_threads), std::vector<float>(static_cast<size_t>(K)));
    const double row_s = bench_seconds(s.n_threads, 0.05, [&](int i) {
                           for (int64_t r = 0; r < 1000; ++r) t.packed_row(w, r, row[static_cast<size_t>(i)].data());
                         }) / 1000;
    const std::vector<float> x = random_floats(static_cast<size_t>(M * K), 1.0f, 4);
    std::vector<float> y(static_cast<size_t>(M * N));
    const double f32_s = bench_seconds(s.n_threads, 0.2, [&](int i) {
      t.matmul_f32(w, tiles * i / s.n_threads, tiles * (i + 1) / s.n_threads, x.data(), K, M, y.data(), N);
    });
    check_products(t, source, x, y);
    const double moved = static_cast<double>(source.rows.size() + t.packed_bytes(w.type, N, K));
    const double flops = 2.0 * static_cast<double>(M * N * K) / f32_s;
    std::printf("%-7s | %10.2f %5.0f%% | %14.0f | %15.1f %5.0f%%\n", type, moved / pack_s / 1e9,
                100 * moved / pack_s / s.read_bytes_per_s, 1e9 * row_s, flops / 1e9, 400 * flops / s.int8_ops_per_s);
    std::fflush(stdout);
  }
  return 0;
}
