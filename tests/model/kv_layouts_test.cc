// Where layers lie in a page: for one element type by hand, for all of them against what the kernels write.
#include "model/kv_layouts.h"

#include <catch2/catch.hpp>

#include "kernels/kernel_table.h"

using namespace tandem;

namespace {

// Two groups: layers 0 and 2 with 2 K/V heads of 4, layer 1 with one head of 5.
ModelConfig two_groups() {
  ModelConfig config;
  config.layers.resize(3);
  KvGroup wide, narrow;
  wide.layers = {0, 2}, wide.n_kv_heads = 2, wide.head_dim = 4;
  narrow.layers = {1}, narrow.n_kv_heads = 1, narrow.head_dim = 5;
  config.kv_groups = {wide, narrow};
  return config;
}

}  // namespace

TEST_CASE("layers lie one behind the other, each from a cache line on") {
  const KvLayouts f16 = kv_layouts(two_groups(), KvType::kF16, 16);
  CHECK(f16.page_bytes == std::vector<size_t>{1024, 320});  // 2 layers of 2 x 2 x 4 x 16 halves; 2 x 5 x 16 halves
  CHECK(f16.of_layers[0].layer_offset == 0);
  CHECK(f16.of_layers[2].layer_offset == 512);
  CHECK(f16.of_layers[1].layer_offset == 0);
  CHECK(f16.of_layers[1].head_dim == 5);
  CHECK(f16.of_layers[2].page_bytes == 1024);
  CHECK(f16.of_layers[2].page_size == 16);
  const KvLayouts q8 = kv_layouts(two_groups(), KvType::kQ8_0, 16);
  CHECK(q8.page_bytes == std::vector<size_t>{768, 256});  // 4 x (64 + 16 halves) a layer; 2 x (80 + 32) = 224, rounded up
}

TEST_CASE("a layer has room for all that the kernels put there") {
  for (const KvType type : {KvType::kF16, KvType::kF32, KvType::kQ8_0}) {
    for (const int page_size : {16, 32}) {
      const KvLayouts all = kv_layouts(two_groups(), type, page_size);
      const size_t wide = kernel_table_ref().kv_layer_bytes(all.of_layers[0]);
      CHECK(all.of_layers[2].layer_offset >= wide);
      CHECK(all.page_bytes[0] >= 2 * wide);
      CHECK(all.page_bytes[1] >= kernel_table_ref().kv_layer_bytes(all.of_layers[1]));
      CHECK(all.page_bytes[0] % 64 == 0);
    }
  }
}
