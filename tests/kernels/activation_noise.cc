#include "tests/kernels/activation_noise.h"

#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/act_block.h"

namespace tandem {
namespace {

std::atomic<decltype(KernelTable::quantize_act)> plain_quantize{nullptr};
std::atomic<uint32_t> noise_seed{0};

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Drawn from the values themselves, so that it does not depend on which thread comes when.
void noisy_quantize(const float* x, int64_t n_cols, uint8_t* act) {
  std::vector<float> noisy(x, x + n_cols);
  uint64_t state = mix(noise_seed);
  for (int64_t b = 0; b < n_cols; b += QK) {
    float amax = 0;
    for (int64_t k = b; k < b + QK; ++k) amax = std::fmax(amax, std::fabs(x[k]));
    const float step = amax / kActSteps;
    for (int64_t k = b; k < b + QK; ++k) {
      uint32_t bits;
      std::memcpy(&bits, x + k, sizeof bits);
      state = mix(state ^ bits);
      noisy[static_cast<size_t>(k)] += step * (static_cast<float>(state >> 40) * 0x1p-24f - 0.5f);
    }
  }
  plain_quantize.load()(noisy.data(), n_cols, act);
}

}  // namespace

KernelTable with_activation_noise(const KernelTable& base, uint32_t seed) {
  plain_quantize = base.quantize_act;
  noise_seed = seed;
  KernelTable table = base;
  table.quantize_act = noisy_quantize;
  return table;
}

double rounding_sigma(const std::vector<std::vector<double>>& by_seed) {
  const size_t n_seeds = by_seed.size(), n_values = by_seed[0].size();
  double sum_squares = 0;
  for (size_t v = 0; v < n_values; ++v) {
    double mean = 0;
    for (const auto& values : by_seed) mean += values[v] / static_cast<double>(n_seeds);
    for (const auto& values : by_seed) sum_squares += (values[v] - mean) * (values[v] - mean);
  }
  return std::sqrt(sum_squares / static_cast<double>(n_values * (n_seeds - 1)) / 2);
}

double largest_error(std::span<const double> sigmas, double chance) {
  double low = 0, high = 0;
  for (double sigma : sigmas) high = std::fmax(high, 40 * sigma);
  for (int i = 0; i < 60; ++i) {
    const double bound = (low + high) / 2;
    double expected = 0;  // how many exceed it
    for (double sigma : sigmas) expected += std::erfc(bound / (sigma * std::sqrt(2.0)));
    (expected > chance ? low : high) = bound;
  }
  return high;
}

}  // namespace tandem
