// Columns that count differently: what improve_row makes of a row is judged by the weighted error of its bytes, read back.
#include <catch2/catch.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/quant_blocks.h"
#include "quantize/quantize_target.h"

using namespace tandem;

namespace {

std::vector<uint8_t> quantize(const QuantizeTarget& target, const std::vector<float>& x, const std::vector<float>& weight = {}) {
  const QuantTraits* t = quant_traits(static_cast<uint32_t>(target.type));
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint8_t> blocks(x.size() / static_cast<size_t>(t->block_size) * static_cast<size_t>(t->block_bytes));
  target.quantize_row(x.data(), n, blocks.data());
  if (!weight.empty()) target.improve_row(x.data(), weight.data(), n, blocks.data());
  return blocks;
}

// Of each block.
std::vector<double> errors(const QuantizeTarget& target, const std::vector<uint8_t>& blocks, const std::vector<float>& x,
                           const std::vector<float>& weight) {
  const QuantTraits* t = quant_traits(static_cast<uint32_t>(target.type));
  std::vector<float> read(x.size());
  t->dequantize_row(blocks.data(), static_cast<int64_t>(x.size()), read.data());
  const auto block = static_cast<size_t>(t->block_size);
  std::vector<double> sums(x.size() / block);
  for (size_t i = 0; i < x.size(); ++i) {
    sums[i / block] += static_cast<double>(weight[i]) * std::pow(static_cast<double>(read[i]) - static_cast<double>(x[i]), 2);
  }
  return sums;
}

double total(const std::vector<double>& sums) {
  double all = 0;
  for (const double s : sums) all += s;
  return all;
}

// Weights as models have them: bell curves.
std::vector<float> normal_values(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist(0, 0.05f);
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

// Mean squares of activations: a few columns are hundreds of times the others.
std::vector<float> skewed_weights(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::lognormal_distribution<float> dist(0, 1.5f);
  std::vector<float> w(n);
  for (float& v : w) v = dist(rng);
  return w;
}

std::vector<const QuantizeTarget*> weighted_targets() {
  std::vector<const QuantizeTarget*> some;
  for (const QuantizeTarget& t : quantize_targets()) {
    if (t.improve_row != nullptr) some.push_back(&t);
  }
  return some;
}

}  // namespace

TEST_CASE("which types take weights") {
  CHECK(quantize_target_options(true) == "q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k");
  CHECK(weighted_targets().size() == 7);
}

TEST_CASE("with weights no block is worse by them, and rows are better") {
  const std::vector<float> x = normal_values(QK_K * 100, 1), weight = skewed_weights(x.size(), 2);
  for (const QuantizeTarget* target : weighted_targets()) {
    const std::vector<double> plain = errors(*target, quantize(*target, x), x, weight);
    const std::vector<double> improved = errors(*target, quantize(*target, x, weight), x, weight);
    for (size_t b = 0; b < plain.size(); ++b) {
      INFO(target->option << " block " << b);
      REQUIRE(improved[b] <= plain[b]);
    }
    INFO(target->option << ": weighted error " << std::sqrt(total(improved) / total(plain)) << " of the plain one");
    CHECK(total(improved) < 0.95 * total(plain));
  }
}

TEST_CASE("weights belong to their columns") {
  // The same weights in another order are those of other columns: judged by the right ones, the result is worse in every type.
  const std::vector<float> x = normal_values(QK_K * 100, 3), weight = skewed_weights(x.size(), 4);
  std::vector<float> turned = weight;
  std::reverse(turned.begin(), turned.end());
  std::vector<float> shifted = weight;
  std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
  for (const QuantizeTarget* target : weighted_targets()) {
    INFO(target->option);
    const double right = total(errors(*target, quantize(*target, x, weight), x, weight));
    CHECK(right < 0.98 * total(errors(*target, quantize(*target, x, turned), x, weight)));
    CHECK(right < 0.98 * total(errors(*target, quantize(*target, x, shifted), x, weight)));
  }
}

TEST_CASE("weights that are all alike give no less than the plain error allows, and only their ratios matter") {
  const std::vector<float> x = normal_values(QK_K * 20, 5), ones(x.size(), 1.0f);
  for (const QuantizeTarget* target : weighted_targets()) {
    INFO(target->option);
    const double plain = total(errors(*target, quantize(*target, x), x, ones));
    const double improved = total(errors(*target, quantize(*target, x, ones), x, ones));
    CHECK(improved <= plain);
    CHECK(improved > 0.5 * plain);  // no search doubles the levels
    std::vector<float> weight = skewed_weights(x.size(), 6);
    const std::vector<uint8_t> once = quantize(*target, x, weight);
    for (float& w : weight) w *= 1024;  // exact
    CHECK(quantize(*target, x, weight) == once);
  }
}

TEST_CASE("columns that nothing ever met") {
  const std::vector<float> x = normal_values(QK_K * 4, 7);
  for (const QuantizeTarget* target : weighted_targets()) {
    INFO(target->option);
    const std::vector<uint8_t> plain = quantize(*target, x);
    CHECK(quantize(*target, x, std::vector<float>(x.size(), 0.0f)) == plain);
    // One block's weights are zero: it stays, the others are improved.
    std::vector<float> weight = skewed_weights(x.size(), 8);
    std::fill_n(weight.begin() + QK_K, QK_K, 0.0f);
    const std::vector<uint8_t> mixed = quantize(*target, x, weight);
    const size_t bytes = plain.size() / 4;
    CHECK(std::memcmp(mixed.data() + bytes, plain.data() + bytes, bytes) == 0);
    CHECK(std::memcmp(mixed.data(), plain.data(), bytes) != 0);
  }
}

TEST_CASE("a column that alone counts is nearly exact in the simple types") {
  // Its scale (or minimum) is free: what is left is the scale's rounding to half, and the minimum's. Without a minimum there must be a
  // level: one of a sixteenth of the largest value is zero with any width that is tried.
  for (const char* option : {"q4_0", "q5_0", "q4_1", "q5_1"}) {
    const QuantizeTarget& target = *find_quantize_target(option);
    const std::vector<float> x = normal_values(QK * 50, 9);
    std::vector<float> weight(x.size(), 1e-6f);
    for (size_t b = 0; b < x.size(); b += QK) weight[b + b / QK % QK] = 1;
    const std::vector<uint8_t> blocks = quantize(target, x, weight);
    std::vector<float> read(x.size());
    quant_traits(static_cast<uint32_t>(target.type))->dequantize_row(blocks.data(), static_cast<int64_t>(x.size()), read.data());
    for (size_t b = 0; b < x.size(); b += QK) {
      const size_t i = b + b / QK % QK;
      float most = 0;
      for (size_t j = b; j < b + QK; ++j) most = std::max(most, std::fabs(x[j]));
      // A level times a scale rounded by 1/2048, and a minimum of up to the block's range.
      if (option[3] == '0' && std::fabs(x[i]) < most / 4) continue;
      INFO(option << " value " << x[i] << " became " << read[i]);
      CHECK(std::fabs(read[i] - x[i]) <= 6 * most / 2048);
    }
  }
}

TEST_CASE("rows that are hard to divide into levels, with weights") {
  for (const QuantizeTarget* target : weighted_targets()) {
    INFO(target->option);
    const std::vector<float> weight = skewed_weights(QK_K, 10);
    for (const float v : {0.0f, 0.5f, -0.5f, 1e-12f, -1e-38f, 1e-44f, 3e4f}) {
      const std::vector<float> x(QK_K, v);
      const double plain = total(errors(*target, quantize(*target, x), x, weight));
      const double improved = total(errors(*target, quantize(*target, x, weight), x, weight));
      CHECK(std::isfinite(improved));
      CHECK(improved <= plain);
    }
    // Scales that a half cannot hold stay what they were: the caller looks for that.
    const std::vector<float> large(QK_K, 1e9f);
    CHECK(quantize(*target, large, weight) == quantize(*target, large));
  }
}
