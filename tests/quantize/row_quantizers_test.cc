// Quantizers of files: the simple types bit for bit against the gguf package, all within the error their step width allows, the
// k-quants better than plain rounding.
#include "quantize/row_quantizers.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "kernels/quant_blocks.h"
#include "quantize/quantize_target.h"

using namespace tandem;

namespace {

std::vector<uint8_t> quantize(const QuantizeTarget& target, const std::vector<float>& x) {
  const QuantTraits* t = quant_traits(static_cast<uint32_t>(target.type));
  std::vector<uint8_t> blocks(x.size() / static_cast<size_t>(t->block_size) * static_cast<size_t>(t->block_bytes));
  target.quantize_row(x.data(), static_cast<int64_t>(x.size()), blocks.data());
  return blocks;
}

std::vector<float> round_trip(const QuantizeTarget& target, const std::vector<float>& x) {
  const std::vector<uint8_t> blocks = quantize(target, x);
  std::vector<float> out(x.size());
  quant_traits(static_cast<uint32_t>(target.type))->dequantize_row(blocks.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}

std::vector<float> normal_values(size_t n, float sigma, uint32_t seed = 11) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist(0, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

double rms_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

const QuantizeTarget& target_of(const char* option) {
  const QuantizeTarget* t = find_quantize_target(option);
  REQUIRE(t != nullptr);
  return *t;
}

float largest(const float* x, int n) {
  float best = 0;
  for (int i = 0; i < n; ++i) best = std::max(best, std::fabs(x[i]));
  return best;
}

}  // namespace

TEST_CASE("the simple types give the bytes of the gguf package") {
  std::ifstream in(TANDEM_SOURCE_DIR "/tests/quantize/golden/quantized.bin", std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(data.size() > 4);
  uint32_t n = 0;
  std::memcpy(&n, data.data(), sizeof n);
  REQUIRE(n == 18 * 32);
  std::vector<float> x(n);
  std::memcpy(x.data(), data.data() + 4, n * 4);
  size_t at = 4 + n * 4;
  int n_types = 0;
  for (; at < data.size(); ++n_types) {
    uint32_t head[2];
    std::memcpy(head, data.data() + at, sizeof head);
    const QuantizeTarget& target = quantize_target_of(static_cast<GgmlType>(head[0]));
    const std::vector<uint8_t> got = quantize(target, x);
    REQUIRE(got.size() == head[1]);
    const auto block = static_cast<size_t>(quant_traits(head[0])->block_bytes);
    for (size_t i = 0; i < got.size(); ++i) {
      INFO(target.option << " block " << i / block << " byte " << i % block);
      REQUIRE(static_cast<int>(got[i]) == static_cast<int>(static_cast<uint8_t>(data[at + 8 + i])));
    }
    at += 8 + head[1];
  }
  REQUIRE(n_types == 5);
}

TEST_CASE("no value of a simple type is off by more than its step allows") {
  // Half a step of levels, one of the lost level -8 has no +8 for, and what half precision does to scale and minimum.
  struct Row {
    const char* option;
    float steps;  // of the largest magnitude, or of the range
    bool from_min;
  };
  const float half_epsilon = 1.0f / 2048;
  for (const Row& row : {Row{"q4_0", 8, false}, Row{"q5_0", 16, false}, Row{"q8_0", 127, false}, Row{"q4_1", 15, true},
                         Row{"q5_1", 31, true}}) {
    for (const float sigma : {0.02f, 1.0f, 40.0f}) {
      const std::vector<float> x = normal_values(32 * 64, sigma);
      const std::vector<float> y = round_trip(target_of(row.option), x);
      for (size_t b = 0; b < x.size(); b += QK) {
        const float most = largest(&x[b], QK);
        const auto [low, high] = std::minmax_element(&x[b], &x[b] + QK);
        const float step = row.from_min ? (*high - *low) / row.steps : most / row.steps;
        const bool loses_a_level = !row.from_min && row.steps < 100;
      const float allowed = (loses_a_level ? 1.0f : 0.5f) * step + 2 * most * half_epsilon +
                            (row.from_min ? step * row.steps * half_epsilon : 0);
        for (size_t i = b; i < b + QK; ++i) {
          INFO(row.option << " value " << x[i] << " became " << y[i] << ", allowed " << allowed);
          REQUIRE(std::fabs(y[i] - x[i]) <= allowed);
        }
      }
    }
  }
}

TEST_CASE("k-quants beat plain rounding, and more bits beat fewer") {
  // Of normal values, blocks of 32: a uniform quantizer over the range of the block has step range / (levels - 1) and the error
  // step / sqrt(12); the expected range of 32 normal values is 4.14 sigma (tables of order statistics).
  const float sigma = 0.03f;
  const std::vector<float> x = normal_values(256 * 400, sigma);
  const double q4 = rms_error(x, round_trip(target_of("q4_k"), x));
  const double q5 = rms_error(x, round_trip(target_of("q5_k"), x));
  const double q6 = rms_error(x, round_trip(target_of("q6_k"), x));
  const double plain4 = 4.14 * sigma / 15 / std::sqrt(12.0), plain5 = 4.14 * sigma / 31 / std::sqrt(12.0);
  INFO("q4_k " << q4 / sigma << " q5_k " << q5 / sigma << " q6_k " << q6 / sigma << " plain " << plain4 / sigma << ", "
               << plain5 / sigma);
  CHECK(q4 < plain4);
  CHECK(q5 < plain5);
  // Twice the levels, half the error, but for what the stored scales lose.
  CHECK(q5 < 0.6 * q4);
  CHECK(q6 < 0.75 * q5);
  CHECK(q4 < rms_error(x, round_trip(target_of("q4_0"), x)) * 0.85);
  CHECK(q5 < rms_error(x, round_trip(target_of("q5_0"), x)) * 0.85);
}

TEST_CASE("every value of a k-quant is within its block's step") {
  for (const char* option : {"q4_k", "q5_k", "q6_k"}) {
    for (const float sigma : {0.001f, 0.5f}) {
      const std::vector<float> x = normal_values(256 * 64, sigma, 5);
      const std::vector<float> y = round_trip(target_of(option), x);
      // The step of a block is at most its range over the levels, stretched by a search of 10 %, and the scales are stored in
      // steps of 1/63 (1/128) of the super-block's largest.
      const float levels = option[1] == '4' ? 15 : option[1] == '5' ? 31 : 63;
      const float coarse = option[1] == '6' ? 1.0f / 128 : 1.0f / 63;
      for (size_t s = 0; s < x.size(); s += QK_K) {
        const float most = largest(&x[s], QK_K);
        for (size_t i = s; i < s + QK_K; ++i) {
          const float allowed = 2 * most / levels * 1.15f + 2 * most * coarse;
          INFO(option << " value " << x[i] << " became " << y[i] << ", allowed " << allowed);
          REQUIRE(std::fabs(y[i] - x[i]) <= allowed);
        }
      }
    }
  }
}

TEST_CASE("rows that are hard to divide into levels") {
  for (const QuantizeTarget& target : quantize_targets()) {
    INFO(target.option);
    const auto all = [&](float v) { return round_trip(target, std::vector<float>(QK_K, v)); };
    for (const float v : all(0)) REQUIRE(v == 0);
    for (const float c : {0.5f, -0.5f, 5e-3f}) {
      for (const float v : all(c)) REQUIRE(std::fabs(v - c) <= std::fabs(c) * 0.04f);
    }
    // Below what a half can hold: nothing, but finite.
    for (const float tiny : {1e-12f, -1e-12f, 1e-38f, 1e-44f}) {
      for (const float v : all(tiny)) REQUIRE(std::fabs(v) <= 1e-6f);
    }
    // One value in a row of zeros is kept.
    std::vector<float> one(QK_K, 0.0f);
    one[77] = -1.5f;
    const std::vector<float> y = round_trip(target, one);
    for (size_t i = 0; i < y.size(); ++i) REQUIRE(std::fabs(y[i] - one[i]) <= 0.05f);
  }
}

TEST_CASE("each block depends on its own values only") {
  for (const QuantizeTarget& target : quantize_targets()) {
    const QuantTraits* t = quant_traits(static_cast<uint32_t>(target.type));
    const std::vector<float> x = normal_values(4 * QK_K, 0.2f, 3);
    const std::vector<uint8_t> whole = quantize(target, x);
    const auto block = static_cast<size_t>(t->block_size), bytes = static_cast<size_t>(t->block_bytes);
    for (size_t i = 0; i < x.size() / block; ++i) {
      const std::vector<float> part(x.begin() + static_cast<ptrdiff_t>(i * block), x.begin() + static_cast<ptrdiff_t>((i + 1) * block));
      REQUIRE(std::memcmp(quantize(target, part).data(), whole.data() + i * bytes, bytes) == 0);
    }
  }
}
