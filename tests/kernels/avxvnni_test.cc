// The AVX-VNNI column on processors with AVX-512 VNNI (avxvnni_in_evex.cc): the bits of the AVX2 column, which takes
// other instructions to the same exact integers.
#if defined(__x86_64__)
#include <catch2/catch.hpp>
#include <cstring>
#include <iostream>
#include <string>

#include "kernels/columns.h"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

namespace tandem::avxvnni_in_evex {
void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, int64_t M, float* y,
            int64_t ldy);
}

using namespace tandem;

TEST_CASE("the AVX-VNNI matmul gives the bits of the AVX2 matmul") {
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vl")) {
    std::cerr << "avxvnni_test: needs AVX-512 VNNI\n";
    return;
  }
  constexpr int64_t N = 37, M = 7;
  const KernelTable* avx2 = nullptr;
  int n_columns = 0;
  const KernelColumn* columns = kernel_columns(&n_columns);
  for (int i = 0; i < n_columns; ++i) {
    if (std::string(columns[i].table->isa) == "avx2") avx2 = columns[i].table;
  }
  REQUIRE(avx2 != nullptr);
  for (const char* type : kColumnTypes) {
    INFO(type);
    const int64_t K = quant_traits_by_name(type)->block_size == 256 ? 768 : 224;
    RandomMatrix source = random_matrix(type, N, K, 21);
    const size_t stride = avx2->act_row_bytes(K);
    for (const int fill : {-1, 0x00, 0x7f, 0x80, 0xff}) {  // random quants, then the extremes that could saturate
      if (fill >= 0 && quant_traits_by_name(type)->block_size > 1) fill_quants(&source, static_cast<uint8_t>(fill));
      AlignedBytes packed(avx2->packed_bytes(source.traits->type, N, K)), act(stride * M);
      avx2->pack_tiles(source.traits->type, source.rows.data(), N, K, 0, (N + kTileRows - 1) / kTileRows, packed.data());
      std::vector<float> x = random_floats(static_cast<size_t>(M * K), 1.0f, 22);
      for (int64_t k = 0; k < K; ++k) x[static_cast<size_t>(k)] = k % 2 ? -5.0f : 5.0f;
      for (int64_t k = 0; k < K; ++k) x[static_cast<size_t>(K + k)] = 5.0f;
      for (int64_t m = 0; m < M; ++m)
        avx2->quantize_act(x.data() + m * K, K, act.data() + static_cast<size_t>(m) * stride);
      const PackedMatrix w = {source.traits->type, N, K, packed.data()};
      std::vector<float> want(static_cast<size_t>(M * N), 1.0f), got(static_cast<size_t>(M * N), 2.0f);
      const int64_t tiles = (N + kTileRows - 1) / kTileRows;
      avx2->matmul(w, 0, tiles, act.data(), M, want.data(), N);
      avxvnni_in_evex::matmul(w, 0, tiles, act.data(), M, got.data(), N);
      INFO("quants " << fill);
      CHECK(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0);
    }
  }
}
#endif
