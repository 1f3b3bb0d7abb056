#include "tests/kernels/tested_column.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <sstream>

#include <catch2/catch.hpp>

namespace tandem {
namespace {

bool cpu_has(const std::string& feature) {
#if defined(__x86_64__)
  if (feature == "avx2") return __builtin_cpu_supports("avx2");
  if (feature == "fma") return __builtin_cpu_supports("fma");
  if (feature == "f16c") return __builtin_cpu_supports("f16c");
  if (feature == "avx512f") return __builtin_cpu_supports("avx512f");
  if (feature == "avx512bw") return __builtin_cpu_supports("avx512bw");
  if (feature == "avx512dq") return __builtin_cpu_supports("avx512dq");
  if (feature == "avx512vl") return __builtin_cpu_supports("avx512vl");
  if (feature == "avx512_vnni") return __builtin_cpu_supports("avx512vnni");
#endif
  FAIL("tested_column.cc does not know the CPU feature " << feature);
  return false;
}

std::string missing_features(const KernelColumn& column) {
  std::istringstream in(column.needs);
  std::string feature, missing;
  while (in >> feature) {
    if (!cpu_has(feature)) missing += " " + feature;
  }
  return missing;
}

const KernelColumn* chosen_column() {
  int n = 0;
  const KernelColumn* columns = kernel_columns(&n);
  const char* forced = std::getenv("TANDEM_FORCE_ISA");
  if (forced && *forced) {
    for (int i = 0; i < n; ++i) {
      if (std::strcmp(columns[i].table->isa, forced) == 0) return &columns[i];
    }
    FAIL("TANDEM_FORCE_ISA=" << forced << " names no column of this build");
  }
  for (int i = n - 1; i > 0; --i) {
    if (missing_features(columns[i]).empty()) return &columns[i];
  }
  return &columns[0];
}

}  // namespace

std::string tested_column_missing() { return missing_features(*chosen_column()); }

const KernelTable* tested_column() {
  return tested_column_missing().empty() ? chosen_column()->table : nullptr;
}

std::vector<float> random_floats(size_t n, float sigma, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist(0, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

void WorstError::add(double got, double want, double bound, int64_t place) {
  if (got == want) return;
  const double ratio = std::abs(got - want) / bound;
  if (std::isnan(ratio)) has_nan_ = true;
  if (!(ratio <= worst_)) {
    worst_ = ratio;
    got_ = got;
    want_ = want;
    place_ = place;
  }
}

void WorstError::check() const {
  if (std::getenv("TANDEM_PRINT_ERRORS")) {
    std::cout << what_ << ": worst " << worst_ << " of bound (got " << got_ << ", want " << want_ << ")\n";
  }
  INFO(what_ << ": worst error is " << worst_ << " of its bound at element " << place_ << ": got " << got_
             << ", want " << want_);
  CHECK_FALSE(has_nan_);
  CHECK(worst_ <= 1.0);
}

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
    CHECK((t.matmul && t.matmul_f32 && t.rms_norm && t.rope && t.silu_mul && t.gelu_tanh_mul));
    CHECK((t.add && t.log_sum_exp && t.kv_layer_bytes && t.kv_append && t.attention));
    CHECK(t.attention_scratch_bytes);
  }
}

}  // namespace tandem
