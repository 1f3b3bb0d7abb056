#include "tests/kernels/tested_column.h"

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <sstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

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
  if (feature == "avx512_bf16") return __builtin_cpu_supports("avx512bf16");
  if (feature == "avx_vnni") {  // g++ 12 has no name for it: CPUID leaf 7.1 EAX bit 4
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
  }
  if (feature == "avx512_vnni") return __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
  if (feature == "asimd") return getauxval(AT_HWCAP) & HWCAP_ASIMD;
  if (feature == "asimddp") return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
  if (feature == "i8mm") return getauxval(AT_HWCAP2) & HWCAP2_I8MM;
#endif
  std::cerr << "tested_column.cc does not know the CPU feature " << feature << "\n";
  std::exit(2);
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
    std::cerr << "TANDEM_FORCE_ISA=" << forced << " names no column of this build\n";
    std::exit(2);
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

}  // namespace tandem
