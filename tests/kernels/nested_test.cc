// Q8_0 as two planes of nibbles: both together are plain Q8_0 to the bit, the first alone is the lean form.
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

constexpr int64_t N = 37, K = 224, kMostM = 19;  // two tiles and five rows; an odd number of blocks
constexpr int64_t kTiles = (N + kTileRows - 1) / kTileRows;

struct Packed {
  Packed(const KernelTable& t, GgmlType type, const RandomMatrix& m)
      : bytes(t.packed_bytes(type, N, K)), w{type, N, K, bytes.data()} {
    t.pack_tiles(type, m.rows.data(), N, K, 0, kTiles, bytes.data());
  }
  AlignedBytes bytes;
  PackedMatrix w;
};

// Products of every M up to kMostM, with quantized and with float activations.
std::vector<float> products(const KernelTable& t, const PackedMatrix& w) {
  const std::vector<float> x = random_floats(static_cast<size_t>(kMostM * K), 1.0f, 8);
  const size_t stride = t.act_row_bytes(K);
  AlignedBytes act(stride * kMostM);
  for (int64_t m = 0; m < kMostM; ++m) t.quantize_act(x.data() + m * K, K, act.data() + static_cast<size_t>(m) * stride);
  std::vector<float> all;
  for (int64_t M = 1; M <= kMostM; ++M) {
    std::vector<float> y(static_cast<size_t>(2 * M * N));
    t.matmul(w, 0, kTiles, act.data(), M, y.data(), N);
    t.matmul_f32(w, 0, kTiles, x.data(), K, M, y.data() + M * N, N);
    all.insert(all.end(), y.begin(), y.end());
  }
  for (int64_t n = 0; n < N; ++n) {
    std::vector<float> row(static_cast<size_t>(K));
    t.packed_row(w, n, row.data());
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("nested weights give the bits of plain ones, their first plane those of the lean form") {
  const KernelTable* t = tested_column();
  if (!t) return;
  RandomMatrix m = random_matrix("Q8_0", N, K, 7);
  for (const int fill : {-1, 0x00, 0x7f, 0x80, 0xff}) {  // random quants, then the extremes
    if (fill >= 0) fill_quants(&m, static_cast<uint8_t>(fill));
    INFO("quants " << fill);
    const Packed plain(*t, GgmlType::kQ8_0, m), nested(*t, GgmlType::kQ8_0Nested, m), lean(*t, GgmlType::kQ8_0Lean, m);
    CHECK(same_bits(products(*t, plain.w), products(*t, nested.w)));
    CHECK(same_bits(products(*t, lean.w), products(*t, lean_form(nested.w))));
    CHECK_FALSE(same_bits(products(*t, lean.w), products(*t, nested.w)));
  }
  CHECK(lean_form(Packed(*t, GgmlType::kQ8_0, m).w).type == GgmlType::kQ8_0);
}

TEST_CASE("a nested matrix is as large as a plain one, its first plane about half of it") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const int64_t n_cols : {K, int64_t{2048}}) {
    const size_t plain = t->packed_bytes(GgmlType::kQ8_0, N, n_cols), nested = t->packed_bytes(GgmlType::kQ8_0Nested, N, n_cols);
    CHECK(nested == plain);
    const size_t lean = t->packed_bytes(GgmlType::kQ8_0Lean, N, n_cols);
    if (std::string(t->isa) != "ref") CHECK(lean * 17 == plain * 9);  // 2 bytes of scale and 16 of 34
  }
}

TEST_CASE("a lean value is the middle of those that share its half byte") {
  const QuantTraits& lean = *quant_traits_by_name("Q8_0 lean");
  const uint16_t one = float_to_half(1.0f);
  for (int high = 0; high < 16; ++high) {
    double sum = 0;
    for (int low = 0; low < 16; ++low) {
      uint8_t block[34] = {};
      std::memcpy(block, &one, 2);
      block[2] = static_cast<uint8_t>(16 * high + low - 128);
      float out[32];
      lean.dequantize_row(block, 32, out);
      CHECK(out[0] == 16.0f * static_cast<float>(high) - 120.5f);
      sum += 16.0 * high + low - 128;
    }
    CHECK(sum / 16 == 16.0 * high - 120.5);
  }
}

TEST_CASE("no file has a packed form") {
  int n = 0;
  const QuantTraits* all = quant_traits_all(&n);
  for (int i = 0; i < n; ++i) CHECK(is_file_type(static_cast<uint32_t>(all[i].type)));
  CHECK_FALSE(is_file_type(static_cast<uint32_t>(GgmlType::kQ8_0Nested)));
  CHECK_FALSE(is_file_type(static_cast<uint32_t>(GgmlType::kQ8_0Lean)));
}
