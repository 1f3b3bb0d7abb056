// Number formats: dequantizers against blocks of the `gguf` package, quantizers against their step
// size, half and bfloat16 over every bit pattern.
#include "kernels/quant_traits.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "kernels/quant_blocks.h"

using namespace tandem;

namespace {

uint32_t bits(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

std::string read_golden() {
  std::ifstream in(TANDEM_SOURCE_DIR "/tests/kernels/golden/golden_blocks.bin", std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<float> normal_values(size_t n, float sigma) {
  std::mt19937 rng(7);
  std::normal_distribution<float> dist(0, sigma);
  std::vector<float> x(n);
  for (float& v : x) v = dist(rng);
  return x;
}

}  // namespace

TEST_CASE("every dequantizer gives the bits of the gguf package") {
  const std::string data = read_golden();
  REQUIRE(data.size() > 30000);
  size_t at = 0;
  int n_types = 0;
  while (at < data.size()) {
    uint32_t head[3];
    memcpy(head, data.data() + at, sizeof head);
    const QuantTraits* t = quant_traits(head[0]);
    REQUIRE(t != nullptr);
    INFO("type " << t->name);
    REQUIRE(head[1] == head[2] / t->block_size * t->block_bytes);
    const auto* blocks = reinterpret_cast<const uint8_t*>(data.data() + at + sizeof head);
    std::vector<float> want(head[2]), got(head[2]);
    memcpy(want.data(), blocks + head[1], want.size() * 4);
    t->dequantize_row(blocks, static_cast<int64_t>(got.size()), got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      INFO("value " << i << " got " << got[i] << " want " << want[i]);
      REQUIRE((got[i] == want[i] || bits(got[i]) == bits(want[i])));  // -0 may stand for 0
    }
    at += sizeof head + head[1] + want.size() * 4;
    ++n_types;
  }
  REQUIRE(n_types == 15);
}

TEST_CASE("Q8_K is scale times integer") {
  block_q8_K b = {};
  b.d = 0.37f;
  for (int i = 0; i < QK_K; ++i) b.qs[i] = static_cast<int8_t>(i - 128);
  float out[QK_K];
  quant_traits_by_name("Q8_K")->dequantize_row(reinterpret_cast<const uint8_t*>(&b), QK_K, out);
  for (int i = 0; i < QK_K; ++i) REQUIRE(out[i] == 0.37f * static_cast<float>(i - 128));
}

TEST_CASE("the table is consistent") {
  int n = 0;
  const QuantTraits* all = quant_traits_all(&n);
  REQUIRE(n >= 22);
  for (int i = 0; i < n; ++i) {
    INFO(all[i].name);
    REQUIRE(quant_traits(static_cast<uint32_t>(all[i].type)) == &all[i]);
    REQUIRE(quant_traits_by_name(all[i].name) == &all[i]);
    REQUIRE(all[i].block_size > 0);
    REQUIRE(QK_K % all[i].block_size == 0);
  }
  REQUIRE(quant_traits(4) == nullptr);  // Q4_2, withdrawn from the format
  REQUIRE(quant_traits(0xffffffffu) == nullptr);
  REQUIRE(quant_traits_by_name("Q4_2") == nullptr);
}

TEST_CASE("half and bfloat16 convert every bit pattern") {
  for (uint32_t u = 0; u < 0x10000; ++u) {
    const auto h = static_cast<uint16_t>(u);
    const float f = half_to_float(h);
    const float b = bf16_to_float(h);
    if (std::isnan(f)) {
      REQUIRE(std::isnan(half_to_float(float_to_half(f))));
    } else {
      REQUIRE(float_to_half(f) == h);
      const int exponent = (h >> 10) & 31, mantissa = h & 1023;
      const double want = exponent == 31 ? INFINITY
                          : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                         : std::ldexp(mantissa, -24);
      REQUIRE(static_cast<double>(f) == (h & 0x8000 ? -want : want));
    }
    if (std::isnan(b)) {
      REQUIRE(std::isnan(bf16_to_float(float_to_bf16(b))));
    } else {
      REQUIRE(float_to_bf16(b) == h);
    }
  }
}

TEST_CASE("rounding to half is to nearest, ties to even") {
  for (uint32_t h = 0; h < 0x7bff; ++h) {  // all finite positive neighbours
    const float low = half_to_float(static_cast<uint16_t>(h));
    const float high = half_to_float(static_cast<uint16_t>(h + 1));
    const float middle = (low + high) / 2;  // exact in float
    REQUIRE(float_to_half(middle) == (h % 2 ? h + 1 : h));
    REQUIRE(float_to_half(std::nextafter(middle, 0.0f)) == h);
    REQUIRE(float_to_half(std::nextafter(middle, 1e9f)) == h + 1);
  }
  REQUIRE(float_to_half(65519.0f) == 0x7bff);
  REQUIRE(float_to_half(65520.0f) == 0x7c00);
  REQUIRE(float_to_half(-1e30f) == 0xfc00);
}

TEST_CASE("quantizers come within half a step of every value") {
  for (const char* name : {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"}) {
    const QuantTraits* t = quant_traits_by_name(name);
    REQUIRE(t->quantize_row != nullptr);
    const auto x = normal_values(1024, 0.3f);
    std::vector<uint8_t> blocks(x.size() / t->block_size * t->block_bytes);
    std::vector<float> back(x.size());
    t->quantize_row(x.data(), 1024, blocks.data());
    t->dequantize_row(blocks.data(), 1024, back.data());
    for (size_t begin = 0; begin < x.size(); begin += 32) {
      float low = 0, high = 0, amax = 0;
      for (size_t i = begin; i < begin + 32; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
        amax = std::max(amax, std::abs(x[i]));
      }
      // Half a step, plus what rounding the half-precision scale and minimum adds (2^-11 each,
      // times the number of steps); Q4_0 lacks the level +8, so its far end may miss a whole step.
      const std::string type = name;
      const float step = type == "Q4_0"   ? amax / 8
                         : type == "Q4_1" ? (high - low) / 15
                                          : amax / 127;
      const float bound = type == "F32"    ? 0
                          : type == "F16"  ? amax / 2048
                          : type == "BF16" ? amax / 256
                          : type == "Q4_0" ? step * 1.0f + amax / 1024
                                           : step * 0.5f + (high - low + amax) / 1024;
      for (size_t i = begin; i < begin + 32; ++i) {
        INFO(name << " value " << i << ": " << x[i] << " became " << back[i]);
        REQUIRE(std::abs(x[i] - back[i]) <= bound);
      }
    }
  }
}

TEST_CASE("quantizers keep zeros and never divide by them") {
  for (const char* name : {"F16", "BF16", "Q4_0", "Q4_1", "Q8_0"}) {
    const QuantTraits* t = quant_traits_by_name(name);
    const std::vector<float> x(64, 0.0f);
    std::vector<uint8_t> blocks(64 / t->block_size * t->block_bytes);
    std::vector<float> back(64, 1.0f);
    t->quantize_row(x.data(), 64, blocks.data());
    t->dequantize_row(blocks.data(), 64, back.data());
    for (float v : back) REQUIRE(v == 0.0f);
  }
}
