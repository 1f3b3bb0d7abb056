// Q8_0 as two planes of nibbles: both together are plain Q8_0 to the bit, the first alone is the lean form.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
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
  // Random quants, most of whose blocks reach both ends, none of whose blocks does, and the extremes.
  constexpr int kRandom = -1, kHalved = -2;
  for (const int fill : {kRandom, kHalved, 0x00, 0x7f, 0x80, 0xff}) {
    if (fill == kHalved) {
      for (size_t i = 0; i < m.rows.size(); ++i)
        if (i % 34 >= 2) m.rows[i] = static_cast<uint8_t>(static_cast<int8_t>(m.rows[i]) / 2);
    }
    if (fill >= 0) fill_quants(&m, static_cast<uint8_t>(fill));
    INFO("quants " << fill);
    const Packed plain(*t, GgmlType::kQ8_0, m), nested(*t, GgmlType::kQ8_0Nested, m), lean(*t, GgmlType::kQ8_0Lean, m);
    CHECK(same_bits(products(*t, plain.w), products(*t, nested.w)));
    CHECK(same_bits(products(*t, lean.w), products(*t, lean_form(nested.w))));
    const bool are_levels = fill == 0x00 || fill == 0x80;
    CHECK(same_bits(products(*t, lean.w), products(*t, nested.w)) == are_levels);
  }
  CHECK(lean_form(Packed(*t, GgmlType::kQ8_0, m).w).type == GgmlType::kQ8_0);
}

TEST_CASE("a nested matrix takes a bit a block more than a plain one, its first plane about half") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (const int64_t n_cols : {K, int64_t{2048}}) {
    const size_t plain = t->packed_bytes(GgmlType::kQ8_0, N, n_cols), nested = t->packed_bytes(GgmlType::kQ8_0Nested, N, n_cols);
    const size_t lean = t->packed_bytes(GgmlType::kQ8_0Lean, N, n_cols);
    if (std::string(t->isa) == "ref") {
      CHECK(nested == plain);
      continue;
    }
    const auto bits = static_cast<size_t>(2 * kTiles * ((n_cols / 32 + 1) / 2 * 2));  // rounded up to a line
    CHECK(nested >= plain + bits);
    CHECK(nested < plain + bits + 64);
    CHECK((lean - (nested - plain)) * 17 == plain * 9);  // 2 bytes of scale and 16 of 34
  }
}

TEST_CASE("a quant's high half says the nearest level, with zero among them unless the block reaches both ends") {
  const QuantTraits& lean = *quant_traits_by_name("Q8_0 lean");
  const uint16_t one = float_to_half(1.0f), minus = float_to_half(-0.5f);
  const auto levels = [&](uint16_t d, int first, int second) {  // of every quant in a block with these two
    std::vector<float> out(256);
    for (int q = -128; q < 128; ++q) {
      uint8_t block[34] = {};
      std::memcpy(block, &d, 2);
      for (const auto& [at, value] : {std::pair{2, first}, {3, second}, {4, q}}) block[at] = static_cast<uint8_t>(value);
      float values[32];
      lean.dequantize_row(block, 32, values);
      out[static_cast<size_t>(q + 128)] = values[2];
    }
    return out;
  };
  const auto furthest = [](const std::vector<float>& level, float d, int lowest, int highest) {
    float most = 0;
    for (int q = lowest; q <= highest; ++q) most = std::max(most, std::abs(level[static_cast<size_t>(q + 128)] - d * static_cast<float>(q)));
    return most;
  };
  const std::vector<float> below = levels(one, -127, 119), above = levels(one, 127, -119), both = levels(one, -127, 120);
  CHECK(below[128] == 0);
  CHECK(above[128] == 0);
  CHECK(both[128] == 8);
  CHECK(furthest(below, 1.0f, -127, 119) == 8);
  CHECK(furthest(above, 1.0f, -119, 127) == 8);
  CHECK(furthest(both, 1.0f, -127, 127) == 8);
  CHECK(below[1] == -128);
  CHECK(above[255] == 128);
  CHECK(furthest(levels(minus, 127, -3), -0.5f, -119, 127) == 4);  // a scale below zero is as good
  CHECK(furthest(levels(one, -128, 127), 1.0f, -128, 127) == 8);
}

TEST_CASE("no file has a packed form") {
  int n = 0;
  const QuantTraits* all = quant_traits_all(&n);
  for (int i = 0; i < n; ++i) CHECK(is_file_type(static_cast<uint32_t>(all[i].type)));
  CHECK_FALSE(is_file_type(static_cast<uint32_t>(GgmlType::kQ8_0Nested)));
  CHECK_FALSE(is_file_type(static_cast<uint32_t>(GgmlType::kQ8_0Lean)));
}
