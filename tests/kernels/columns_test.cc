// The grid itself: which column runs, and that no cell is empty.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/kernels/tested_column.h"

using namespace tandem;

TEST_CASE("the forced column is the one under test") {
  const std::string missing = tested_column_missing();
  const char* forced = std::getenv("TANDEM_FORCE_ISA");
  if (!missing.empty()) {
    std::cout << "SKIPPED: this CPU lacks" << missing << ", needed by " << forced << "\n";
    return;
  }
  const KernelTable* table = tested_column();
  REQUIRE(table != nullptr);
  if (forced && *forced) REQUIRE(std::string(table->isa) == forced);
  std::cout << "column under test: " << table->isa << "\n";
}

TEST_CASE("columns are listed worst first and have no empty cell") {
  int n = 0;
  const KernelColumn* columns = kernel_columns(&n);
  REQUIRE(n >= 1);
  REQUIRE(columns[0].table == &kernel_table_ref());
  REQUIRE(std::string(columns[0].needs).empty());
  for (int i = 0; i < n; ++i) {
    const KernelTable& t = *columns[i].table;
    INFO(t.isa);
    CHECK((t.packed_bytes && t.pack_tiles && t.packed_row && t.act_row_bytes && t.quantize_act));
    CHECK((t.matmul_dense && t.matmul && t.matmul_f32));
    CHECK((t.rms_norm && t.rope && t.silu_mul && t.gelu_tanh_mul));
    CHECK((t.add && t.log_sum_exp && t.kv_layer_bytes && t.kv_append && t.attention));
    CHECK((t.attention_scratch_bytes && t.attention_parts && t.attention_join));
    CHECK((t.peak_int8 && t.peak_read));
  }
}

TEST_CASE("peak loops do what they say") {
  const KernelTable* t = tested_column();
  if (!t) return;
  int32_t sink = 0;
  const int64_t one = t->peak_int8(1, &sink);
  CHECK(one > 0);
  CHECK(t->peak_int8(1000, &sink) == 1000 * one);
  AlignedBytes bytes(64 * 7);
  const uint64_t zero = t->peak_read(bytes.data(), 64 * 7);
  for (size_t i = 0; i < 64 * 7; i += 8) {  // a change in any 8 bytes changes the result
    bytes.data()[i] = 1;
    CHECK(t->peak_read(bytes.data(), 64 * 7) != zero);
    bytes.data()[i] = 0;
  }
}
