// Each scaling against numbers worked out apart from the code: by hand, or by the published formula
// written the other way round (over wavelengths).
#include <catch2/catch.hpp>
#include <cmath>

#include "model/weights.h"
#include "tests/model/tiny_model.h"

using namespace tandem;
using Catch::Matchers::Contains;
using tandem::testing::TinyModel;

namespace {

constexpr int kHeadDim = 64;  // rope keys are read from metadata alone: tensors do not matter here

TinyModel model(const char* arch = "llama") {
  TinyModel m(arch);
  m.set("attention.key_length", TinyModel::u32(kHeadDim));
  m.set("attention.value_length", TinyModel::u32(kHeadDim));
  m.set("rope.freq_base", TinyModel::f32(500000));
  m.set("context_length", TinyModel::u32(131072));
  return m;
}
RopeParams rope_of(TinyModel& m, int context_limit = 0) {
  auto file = m.open();
  auto c = read_model_config(*file, context_limit);
  REQUIRE(c.status().message() == "");
  return c->ropes[0];
}
double plain(int i) { return std::pow(500000.0, -i / 32.0); }

}  // namespace

TEST_CASE("no scaling, and linear by either key") {
  TinyModel m = model();
  for (int i = 0; i < 32; ++i) CHECK(rope_of(m).inv_freq[i] == Approx(plain(i)));
  m.set("rope.scale_linear", TinyModel::f32(4));
  CHECK(rope_of(m).inv_freq[7] == Approx(plain(7) / 4));
  m.set("rope.scaling.factor", TinyModel::f32(2));
  CHECK(rope_of(m).inv_freq[7] == Approx(plain(7) / 2));
  m.set("rope.scaling.type", TinyModel::text("none"));
  CHECK(rope_of(m).inv_freq[7] == Approx(plain(7)));
  CHECK(rope_of(m).attention_factor == 1.0f);
  m.set("rope.scaling.type", TinyModel::text("dynamic"));
  auto file = m.open();
  CHECK_THAT(read_model_config(*file).status().message(),
             Contains("must be none, linear, llama3, yarn or longrope, found \"dynamic\""));
}

// Llama 3.1: factor 8, low 1, high 4, original context 8192, over wavelengths.
double llama3(int i) {
  double f = plain(i), wavelength = 2 * M_PI / f;
  if (wavelength < 8192 / 4.0) return f;
  if (wavelength > 8192 / 1.0) return f / 8;
  double smooth = (8192 / wavelength - 1) / (4 - 1);
  return (1 - smooth) * f / 8 + smooth * f;
}

TEST_CASE("llama3 as keys and as a tensor of divisors") {
  TinyModel keys = model();
  keys.set("rope.scaling.type", TinyModel::text("llama3"));
  keys.set("rope.scaling.factor", TinyModel::f32(8));
  keys.set("rope.scaling.original_context_length", TinyModel::u32(8192));
  RopeParams by_keys = rope_of(keys);
  TinyModel tensor = model();
  tensor.tensor("rope_freqs.weight", {32});
  std::string& data = tensor.tensors["rope_freqs.weight"].data;
  data.clear();
  for (int i = 0; i < 32; ++i)
    tandem::testing::GgufWriter::put(&data, static_cast<float>(plain(i) / llama3(i)));
  RopeParams by_tensor = rope_of(tensor);
  for (int i = 0; i < 32; ++i) {
    CHECK(by_keys.inv_freq[i] == Approx(llama3(i)).epsilon(1e-6));
    CHECK(by_tensor.inv_freq[i] == Approx(llama3(i)).epsilon(1e-6));
  }
  keys.set("rope.scaling.high_freq_factor", TinyModel::f32(0.5f));
  auto file = keys.open();
  CHECK_THAT(read_model_config(*file).status().message(), Contains("above low_freq_factor 1"));
}

TEST_CASE("yarn: fast pairs keep their frequency, slow ones are interpolated") {
  TinyModel m = model("qwen2");
  m.set("rope.freq_base", TinyModel::f32(1e6f));
  m.set("rope.scaling.type", TinyModel::text("yarn"));
  m.set("rope.scaling.factor", TinyModel::f32(4));
  m.set("rope.scaling.original_context_length", TinyModel::u32(32768));
  RopeParams r = rope_of(m);
  CHECK(r.attention_factor == Approx(1 + 0.1 * std::log(4.0)));
  // Pairs that turn 32 times and once in 32768 positions: 11.8 and 19.8, so the ramp runs from 11
  // to 20.
  auto f = [](int i) { return std::pow(1e6, -i / 32.0); };
  for (int i : {0, 5, 11}) CHECK(r.inv_freq[i] == Approx(f(i)));
  for (int i : {20, 25, 31}) CHECK(r.inv_freq[i] == Approx(f(i) / 4));
  CHECK(r.inv_freq[14] == Approx(f(14) * (6 / 9.0) + f(14) / 4 * (3 / 9.0)));
}

TEST_CASE("longrope: the context in force chooses the set of divisors") {
  TinyModel m = model("phi3");
  m.tensor("rope_factors_short.weight", {32}, 1.0f, 0.01f);
  m.tensor("rope_factors_long.weight", {32}, 2.0f, 1.0f);
  m.set("rope.scaling.original_context_length", TinyModel::u32(4096));
  RopeParams is_long = rope_of(m);
  CHECK(is_long.inv_freq[3] == Approx(plain(3) / 5));
  CHECK(is_long.attention_factor == Approx(std::sqrt(1 + std::log(32.0) / std::log(4096.0))));
  RopeParams is_short = rope_of(m, 4096);
  CHECK(is_short.inv_freq[3] == Approx(plain(3) / 1.03));
  CHECK(is_short.attention_factor == is_long.attention_factor);
  m.set("rope.scaling.attn_factor", TinyModel::f32(1.25f));
  CHECK(rope_of(m).attention_factor == 1.25f);

  m.erase("rope.scaling.original_context_length");
  auto file = m.open();
  CHECK_THAT(read_model_config(*file).status().message(),
             Contains("\"phi3.rope.scaling.original_context_length\" is missing"));
  m.set("rope.scaling.original_context_length", TinyModel::u32(4096));
  m.tensors.erase("rope_factors_short.weight");
  file = m.open();
  CHECK_THAT(read_model_config(*file).status().message(),
             Contains("\"rope_factors_short.weight\" is missing"));
  m.tensor("rope_factors_short.weight", {32}, 0.0f);
  file = m.open();
  CHECK_THAT(read_model_config(*file).status().message(),
             Contains("value 0 must be above 0, found 0"));
  m.tensor("rope_factors_short.weight", {16});
  file = m.open();
  CHECK_THAT(read_model_config(*file).status().message(),
             Contains("shape must be [32], found [16]"));
}
