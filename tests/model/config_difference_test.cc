// Two files of one model, and one test a way in which they are not.
#include "model/config_difference.h"

#include <catch2/catch.hpp>

#include "model/weights.h"
#include "tests/model/tiny_model.h"

using namespace tandem;
using tandem::testing::GgufWriter;
using tandem::testing::TinyModel;

namespace {

ModelConfig config_of(TinyModel m) {
  auto file = m.open();
  auto config = read_model_config(*file);
  REQUIRE(config.status().message() == "");
  return *config;
}

// "WHAT WANTED FOUND", "": none.
std::string difference(const ModelConfig& a, const ModelConfig& b) {
  auto d = config_difference(a, b);
  return d ? d->what + " " + d->wanted + " " + d->found : "";
}

ModelConfig with(const char* suffix, TinyModel::Put put, const char* arch = "llama") {
  TinyModel m(arch);
  m.set(suffix, std::move(put));
  return config_of(std::move(m));
}

}  // namespace

TEST_CASE("a model is itself, whatever its name, its trained context and where its output matrix is") {
  for (const char* arch : {"llama", "qwen2", "qwen3", "gemma3", "phi3"}) {
    INFO(arch);
    TinyModel renamed(arch);
    renamed.keys["general.name"] = TinyModel::text("another");
    renamed.set("context_length", TinyModel::u32(256));
    renamed.tensor("output.weight", {16, 10});
    CHECK(difference(config_of(TinyModel(arch)), config_of(renamed)) == "");
  }
}

TEST_CASE("the first difference is told with both values") {
  const ModelConfig model = config_of(TinyModel("llama"));
  CHECK(difference(model, config_of(TinyModel("qwen2"))) == "architecture llama qwen2");
  CHECK(difference(model, config_of(TinyModel("llama", 3))) == "layers 2 3");
  CHECK(difference(config_of(TinyModel("llama", 3)), model) == "layers 3 2");
  CHECK(difference(model, with("rope.freq_base", TinyModel::f32(5000))) == "rope base of layer 0 10000 5000");
  CHECK(difference(model, with("attention.layer_norm_rms_epsilon", TinyModel::f32(1e-5f))) == "norm epsilon 1e-06 1e-05");
  CHECK(difference(model, with("rope.dimension_count", TinyModel::u32(2))) == "rotated values a head of layer 0 4 2");
  CHECK(difference(config_of(TinyModel("gemma3")), with("attention.sliding_window", TinyModel::u32(16), "gemma3")) ==
        "attention window of layer 0 8 16");
  ModelConfig other = model;
  other.layers[1].n_kv_heads = 1;
  CHECK(difference(model, other) == "K/V heads of layer 1 2 1");
  other = model, other.layers[1].ffn_dim = 48;
  CHECK(difference(model, other) == "feed-forward size of layer 1 24 48");
  other = model, other.layers[0].head_dim = 8;
  CHECK(difference(model, other) == "head size of layer 0 4 8");
  other = model, other.layers[0].n_heads = 8;
  CHECK(difference(model, other) == "heads of layer 0 4 8");
  other = model, other.vocab_size = 11;
  CHECK(difference(model, other) == "vocabulary 10 11");
  other = model, other.hidden_dim = 32;
  CHECK(difference(model, other) == "hidden size 16 32");
  other = model, other.has_qkv_bias = true;
  CHECK(difference(model, other) == "biases of q, k and v false true");
  other = model, other.ropes[0].inv_freq[1] = 0.5f;  // scaling that left the base alone
  CHECK(difference(model, other).starts_with("rope frequency 1 of layer 0 "));
}
