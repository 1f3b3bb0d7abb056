// Packing and matmul of the column under test: lossless packing, values against the reference, and
// the invariance rule bit by bit (any M, any split of tiles).
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/act_block.h"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

struct Packed {
  AlignedBytes bytes;
  PackedMatrix w;
};

int64_t tiles_of(const RandomMatrix& m) { return (m.n_rows + kTileRows - 1) / kTileRows; }

// Packed in two ranges, as two threads would.
std::unique_ptr<Packed> pack(const KernelTable& t, const RandomMatrix& m) {
  const size_t n = t.packed_bytes(m.traits->type, m.n_rows, m.n_cols);
  REQUIRE(n > 0);
  auto p = std::unique_ptr<Packed>(new Packed{AlignedBytes(n), {}});
  memset(p->bytes.data(), 0xa5, n);
  const int64_t tiles = tiles_of(m), middle = tiles / 2;
  for (auto [begin, end] : {std::pair{middle, tiles}, std::pair{int64_t{0}, middle}}) {
    t.pack_tiles(m.traits->type, m.rows.data(), m.n_rows, m.n_cols, begin, end, p->bytes.data());
  }
  p->w = {m.traits->type, m.n_rows, m.n_cols, p->bytes.data()};
  return p;
}

std::unique_ptr<AlignedBytes> quantize(const KernelTable& t, const std::vector<float>& x,
                                       int64_t n_cols) {
  const size_t stride = t.act_row_bytes(n_cols), rows = x.size() / static_cast<size_t>(n_cols);
  REQUIRE(stride % 64 == 0);
  auto act = std::make_unique<AlignedBytes>(stride * rows);
  for (size_t m = 0; m < rows; ++m) {
    t.quantize_act(x.data() + m * static_cast<size_t>(n_cols), n_cols, act->data() + m * stride);
  }
  return act;
}

// K a multiple of the type's block, small and odd in blocks.
int64_t small_k(const char* type) {
  return quant_traits_by_name(type)->block_size == 256 ? 768 : 224;
}

constexpr int64_t kOddRows = 37;  // two tiles and five rows
constexpr int64_t kMostM = 64;

// |w|·|a| of one output: what the error bound is relative to.
double weight_of_output(const RandomMatrix& m, const float* x, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < m.n_cols; ++k) {
    sum +=
        static_cast<double>(m.magnitudes[n * m.n_cols + k]) * std::abs(static_cast<double>(x[k]));
  }
  return sum;
}

// The act row as floats, so that the bound uses what was multiplied.
std::vector<float> act_values(const uint8_t* act, int64_t n_cols) {
  std::vector<float> x(n_cols);
  for (int64_t k = 0; k < n_cols; ++k) {
    const ActBlock& b = reinterpret_cast<const ActBlock*>(act)[k / QK];
    x[k] = b.d * static_cast<float>(act_level(b, static_cast<int>(k % QK)));
  }
  return x;
}

}  // namespace

TEST_CASE("packing loses nothing") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const char* type : kColumnTypes) {
    for (int64_t n_cols : {small_k(type), int64_t{256}}) {
      const RandomMatrix m = random_matrix(type, kOddRows, n_cols, 11);
      const auto p = pack(*t, m);
      std::vector<float> row(n_cols);
      for (int64_t n = 0; n < m.n_rows; ++n) {
        t->packed_row(p->w, n, row.data());
        for (int64_t k = 0; k < n_cols; ++k) {
          if (row[k] == m.values[n * n_cols + k]) continue;
          FAIL(type << " row " << n << " column " << k << ": " << row[k] << " is not "
                    << m.values[n * n_cols + k]);
        }
      }
      SUCCEED();
    }
  }
}

TEST_CASE("types and shapes that are not served have no packed form") {
  const KernelTable* t = tested_column();
  if (!t) return;
  CHECK(t->packed_bytes(GgmlType::kI32, 16, 256) == 0);
  CHECK(t->packed_bytes(GgmlType::kQ8_1, 16, 256) == 0);
  CHECK(t->packed_bytes(static_cast<GgmlType>(4), 16, 256) == 0);
  CHECK(t->packed_bytes(GgmlType::kQ4_K, 16, 576) == 0);
  CHECK(t->packed_bytes(GgmlType::kF32, 16, 33) == 0);
  CHECK(t->packed_bytes(GgmlType::kQ4_1, 1, 32) > 0);
}

TEST_CASE("quantized activations equal the reference's in every byte") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const KernelTable& ref = kernel_table_ref();
  std::vector<float> x = random_floats(32 * 40, 3.0f, 5);
  for (int i = 0; i < 32; ++i) {
    x[i] = 0;                                                    // a block of zeros
    x[32 + i] = (i % 2 ? -1e-36f : 1e-40f);                      // too small to scale
    x[64 + i] = static_cast<float>(i - 15) * 0.5f;               // ties at half steps
    x[96 + i] = i == 7 ? 3e38f : 1e30f * static_cast<float>(i);  // near overflow
    x[128 + i] = i == 3 ? INFINITY : 1.0f;
    x[160 + i] = i == 31 ? NAN : 2.0f;
    x[192 + i] =
        i == 0 ? -127.0f : static_cast<float>(i) + 0.5f;  // exact halves after scaling by 1
  }
  AlignedBytes got(t->act_row_bytes(32 * 40)), want(ref.act_row_bytes(32 * 40));
  t->quantize_act(x.data(), 32 * 40, got.data());
  ref.quantize_act(x.data(), 32 * 40, want.data());
  const auto* g = reinterpret_cast<const ActBlock*>(got.data());
  const auto* w = reinterpret_cast<const ActBlock*>(want.data());
  for (size_t b = 0; b < 40; ++b) {
    INFO("block " << b << " d " << g[b].d << " and " << w[b].d);
    const bool is_nan = b == 4 || b == 5;
    CHECK(std::isnan(g[b].d) == is_nan);
    CHECK(std::isnan(w[b].d) == is_nan);
    CHECK(memcmp(g[b].coarse, w[b].coarse, 48) == 0);  // both planes
    if (!is_nan) CHECK(memcmp(&g[b], &w[b], sizeof(ActBlock)) == 0);
  }
}

TEST_CASE("quantized activations are within half a step") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const std::vector<float> x = random_floats(32 * 40, 3.0f, 6);
  AlignedBytes act(t->act_row_bytes(32 * 40));
  t->quantize_act(x.data(), 32 * 40, act.data());
  const std::vector<float> back = act_values(act.data(), 32 * 40);
  WorstError worst("quantize_act");
  for (size_t i = 0; i < x.size(); ++i) {
    const auto& b = reinterpret_cast<const ActBlock*>(act.data())[i / 32];
    // Half a step of 16 d; one more where the shared byte ends at -127. Plus roundings of the scaled
    // value.
    const double steps = b.fine[i % 16] == -127 ? 1.5 : 0.5;
    worst.add(static_cast<double>(back[i]), static_cast<double>(x[i]),
              (16 * steps + 4 * 32768 * kEps) * static_cast<double>(b.d), static_cast<int64_t>(i));
  }
  worst.check();
}

TEST_CASE("matmul agrees with the reference") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const KernelTable& ref = kernel_table_ref();
  for (const char* type : kColumnTypes) {
    const int64_t K = small_k(type), M = 7;
    const RandomMatrix m = random_matrix(type, kOddRows, K, 21);
    const auto p = pack(*t, m), p_ref = pack(ref, m);
    const std::vector<float> x = random_floats(M * K, 1.5f, 22);
    const auto act = quantize(*t, x, K);
    std::vector<float> got(M * kOddRows), want(M * kOddRows), got_f(M * kOddRows),
        want_f(M * kOddRows);
    t->matmul(p->w, 0, tiles_of(m), act->data(), M, got.data(), kOddRows);
    ref.matmul(p_ref->w, 0, tiles_of(m), act->data(), M, want.data(), kOddRows);
    t->matmul_f32(p->w, 0, tiles_of(m), x.data(), K, M, got_f.data(), kOddRows);
    ref.matmul_f32(p_ref->w, 0, tiles_of(m), x.data(), K, M, want_f.data(), kOddRows);
    WorstError worst(std::string("matmul ") + type), worst_f(std::string("matmul_f32 ") + type);
    const bool is_plain = m.traits->block_size == 1;
    for (int64_t i = 0; i < M; ++i) {
      const auto a = act_values(act->data() + i * t->act_row_bytes(K), K);
      for (int64_t n = 0; n < kOddRows; ++n) {
        // Roundings on the way of one product: scale, scale product, and two for each scale or
        // minimum of a block (conversion, addition; at most four); one a value where weights are
        // floats.
        const double terms = static_cast<double>(is_plain ? K : 8 * K / QK) + 4;
        worst.add(static_cast<double>(got[i * kOddRows + n]),
                  static_cast<double>(want[i * kOddRows + n]),
                  terms * kEps * weight_of_output(m, a.data(), n), n);
        worst_f.add(static_cast<double>(got_f[i * kOddRows + n]),
                    static_cast<double>(want_f[i * kOddRows + n]),
                    static_cast<double>(K + 2) * kEps * weight_of_output(m, x.data() + i * K, n),
                    n);
      }
    }
    worst.check();
    worst_f.check();
  }
}

TEST_CASE("dense matmul agrees with the reference and does not depend on M or the split of tiles") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const KernelTable& ref = kernel_table_ref();
  for (const char* type : {"F32", "F16", "BF16"}) {
    for (const int64_t K : {int64_t{96}, int64_t{2112}}) {  // past what is rounded at once
      const int64_t N = kOddRows, ldx = K + 16;
      const RandomMatrix m = random_matrix(type, N, K, 41);
      const auto p = pack(*t, m), p_ref = pack(ref, m);
      const std::vector<float> x = random_floats(kMostM * ldx, 1.0f, 42);
      std::vector<float> one(kMostM * N), want(kMostM * N);
      for (int64_t i = 0; i < kMostM; ++i) {
        t->matmul_dense(p->w, 0, tiles_of(m), x.data() + i * ldx, ldx, 1, one.data() + i * N, N);
      }
      ref.matmul_dense(p_ref->w, 0, tiles_of(m), x.data(), ldx, kMostM, want.data(), N);
      const bool is_rounded = std::string(t->isa) == "avx512bf16" && std::string(type) == "BF16";
      WorstError worst(std::string("matmul_dense ") + type);
      for (int64_t i = 0; i < kMostM * N; ++i) {
        const double bound = static_cast<double>(K + 2) * kEps + (is_rounded ? std::ldexp(1.0, -9) : 0);
        worst.add(static_cast<double>(one[i]), static_cast<double>(want[i]),
                  bound * weight_of_output(m, x.data() + i / N * ldx, i % N), i);
      }
      worst.check();
      for (int64_t M : {2, 3, 5, 6, 7, 11, 12, 13, 24, 31, 64}) {
        const int64_t ldy = N + 3;  // columns past N must stay untouched
        std::vector<float> y(M * ldy, -7.0f);
        for (int64_t tile = tiles_of(m) - 1; tile >= 0; tile -= 2) {
          const int64_t begin = tile > 0 ? tile - 1 : 0;
          t->matmul_dense(p->w, begin, tile + 1, x.data(), ldx, M, y.data(), ldy);
        }
        bool same = true;
        for (int64_t i = 0; i < M; ++i) {
          same = same && memcmp(&y[i * ldy], &one[i * N], N * 4) == 0;
          for (int64_t n = N; n < ldy; ++n) same = same && y[i * ldy + n] == -7.0f;
        }
        INFO(type << " K " << K << " M " << M);
        REQUIRE(same);
      }
      std::vector<float> all(kMostM * N);  // every tile in one call
      t->matmul_dense(p->w, 0, tiles_of(m), x.data(), ldx, kMostM, all.data(), N);
      REQUIRE(memcmp(all.data(), one.data(), all.size() * 4) == 0);
    }
  }
}

TEST_CASE("results do not depend on M or on the split of tiles") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const char* type : kColumnTypes) {
    const int64_t K = small_k(type), N = kOddRows;
    const RandomMatrix m = random_matrix(type, N, K, 31);
    const auto p = pack(*t, m);
    const std::vector<float> x = random_floats(kMostM * K, 1.0f, 32);
    const auto act = quantize(*t, x, K);
    const size_t stride = t->act_row_bytes(K);
    std::vector<float> one(kMostM * N), one_f(kMostM * N);
    for (int64_t i = 0; i < kMostM; ++i) {
      t->matmul(p->w, 0, 3, act->data() + i * stride, 1, one.data() + i * N, N);
      t->matmul_f32(p->w, 0, 3, x.data() + i * K, K, 1, one_f.data() + i * N, N);
    }
    for (int64_t M = 1; M <= kMostM; ++M) {
      const int64_t ldy = N + 3;  // columns past N must stay untouched
      std::vector<float> y(M * ldy, -7.0f), y_f(M * ldy, -7.0f);
      for (int64_t tile : {int64_t{2}, int64_t{0}, int64_t{1}}) {
        t->matmul(p->w, tile, tile + 1, act->data(), M, y.data(), ldy);
        t->matmul_f32(p->w, tile, tile + 1, x.data(), K, M, y_f.data(), ldy);
      }
      bool same = true;
      for (int64_t i = 0; i < M; ++i) {
        same = same && memcmp(&y[i * ldy], &one[i * N], N * 4) == 0;
        same = same && memcmp(&y_f[i * ldy], &one_f[i * N], N * 4) == 0;
        for (int64_t n = N; n < ldy; ++n)
          same = same && y[i * ldy + n] == -7.0f && y_f[i * ldy + n] == -7.0f;
      }
      INFO(type << " M " << M);
      REQUIRE(same);
    }
  }
}

TEST_CASE("extreme quants and activations do not saturate") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const KernelTable& ref = kernel_table_ref();
  for (const char* type : kColumnTypes) {
    const int64_t K = small_k(type);
    RandomMatrix m = random_matrix(type, 16, K, 41);
    if (m.traits->block_size == 1) continue;
    for (int fill : {0xff, 0x00, 0x80, 0x7f}) {
      fill_quants(&m, static_cast<uint8_t>(fill));
      const auto p = pack(*t, m), p_ref = pack(ref, m);
      for (float sign : {1.0f, -1.0f}) {
        const std::vector<float> x(K, sign);  // every quant becomes 127 or -127
        const auto act = quantize(*t, x, K);
        float got[16], want[16];
        t->matmul(p->w, 0, 1, act->data(), 1, got, 16);
        ref.matmul(p_ref->w, 0, 1, act->data(), 1, want, 16);
        WorstError worst(std::string(type) + " of bytes " + std::to_string(fill));
        for (int n = 0; n < 16; ++n) {
          worst.add(static_cast<double>(got[n]), static_cast<double>(want[n]),
                    (static_cast<double>(8 * K / QK) + 4) * kEps * weight_of_output(m, x.data(), n),
                    n);
        }
        worst.check();
      }
    }
  }
}

TEST_CASE("a NaN activation makes its row NaN, and no other row") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const RandomMatrix m = random_matrix("Q4_1", 16, 64, 51);
  const auto p = pack(*t, m);
  std::vector<float> x = random_floats(2 * 64, 1.0f, 52);
  x[40] = NAN;
  const auto act = quantize(*t, x, 64);
  float y[32];
  t->matmul(p->w, 0, 1, act->data(), 2, y, 16);
  for (int n = 0; n < 16; ++n) {
    CHECK(std::isnan(y[n]));
    CHECK(std::isfinite(y[16 + n]));
  }
}
