// Metadata to ModelConfig for each family, and one test a way in which a file can be wrong.
#include "model/model_config.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "model/weights.h"
#include "tests/model/tiny_model.h"

using namespace tandem;
using Catch::Matchers::Contains;
using tandem::testing::GgufWriter;
using tandem::testing::TinyModel;

namespace {

ModelConfig config_of(TinyModel& m) {
  auto file = m.open();
  auto config = read_model_config(*file);
  REQUIRE(config.status().message() == "");
  return *config;
}

std::string config_error(TinyModel& m) {
  auto file = m.open();
  auto config = read_model_config(*file);
  REQUIRE_FALSE(config.ok());
  return config.status().message();
}

// The message after one key took another value.
std::string error_with(const std::string& suffix, TinyModel::Put put, const char* arch = "llama") {
  TinyModel m(arch);
  m.set(suffix, std::move(put));
  return config_error(m);
}
std::string error_with(const std::string& suffix, uint32_t v, const char* arch = "llama") {
  return error_with(suffix, TinyModel::u32(v), arch);
}

}  // namespace

TEST_CASE("what the families have in common, and what each has of its own") {
  for (const char* arch : {"llama", "qwen2", "qwen3", "gemma3", "phi3"}) {
    INFO(arch);
    TinyModel m(arch);
    ModelConfig c = config_of(m);
    CHECK(c.architecture == arch);
    CHECK(c.n_layers == 2);
    CHECK(c.hidden_dim == 16);
    CHECK(c.vocab_size == 10);
    CHECK(c.context_tokens == 128);
    CHECK(c.norm_eps == 1e-6f);
    CHECK(c.attention_scale == 0.5f);
    CHECK(c.layers[1].n_heads == 4);
    CHECK(c.layers[1].n_kv_heads == 2);
    CHECK(c.layers[1].ffn_dim == 24);
    CHECK(c.tied_embeddings);
    CHECK(c.ropes[0].dim == 4);
    CHECK((c.ropes[0].style == RopeStyle::kInterleaved) == (std::string(arch) == "llama"));
    CHECK(c.has_qkv_bias == (std::string(arch) == "qwen2"));
    bool is_gemma = std::string(arch) == "gemma3";
    CHECK(c.has_qk_norm == (is_gemma || std::string(arch) == "qwen3"));
    CHECK(c.has_post_norms == is_gemma);
    CHECK(c.embedding_scale == (is_gemma ? 4.0f : 1.0f));
    CHECK((c.activation == Activation::kGeluTanhGate) == is_gemma);
  }
}

TEST_CASE("gemma3: every sixth layer is full, or as the file says") {
  TinyModel m("gemma3", 12);
  m.set("rope.freq_base", TinyModel::f32(1e6f));
  m.set("rope.scaling.type", TinyModel::text("linear"));
  m.set("rope.scaling.factor", TinyModel::f32(8));
  ModelConfig c = config_of(m);
  REQUIRE(c.kv_groups.size() == 2);
  CHECK(c.kv_groups[0].window == 8);
  CHECK(c.kv_groups[1].layers == std::vector<int>{5, 11});
  CHECK(c.layers[5].kv_group == 1);
  CHECK(c.ropes[0].inv_freq[0] == 0.125f);  // the global one is scaled
  CHECK(c.ropes[1].inv_freq[0] == 1.0f);    // the local one is not
  CHECK(c.ropes[1].theta == 10000.0f);
  m.set("attention.sliding_window_pattern", TinyModel::u32(2));
  CHECK(config_of(m).kv_groups[1].layers == std::vector<int>{1, 3, 5, 7, 9, 11});
  m.set("attention.sliding_window_pattern", [](GgufWriter& w, const std::string& k) {
    w.numbers<uint8_t>(k, 7, {0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  });
  CHECK(config_of(m).kv_groups[0].layers == std::vector<int>{0});
  m.set("attention.sliding_window", TinyModel::u32(128));  // no position ever leaves it
  c = config_of(m);
  CHECK(c.kv_groups.size() == 1);
  CHECK(c.layers[4].rope == 1);
  m.erase("attention.sliding_window");
  CHECK_THAT(config_error(m), Contains("\"gemma3.attention.sliding_window\" is missing"));
}

TEST_CASE("gemma3 27B has an attention scale of its own") {
  TinyModel m("gemma3", 62);
  m.set("attention.key_length", TinyModel::u32(4));
  m.set("embedding_length", TinyModel::u32(16));
  CHECK(config_of(m).attention_scale == 1 / std::sqrt(16.0f / 4));
  m.set("attention.scale", TinyModel::f32(0.25f));
  CHECK(config_of(m).attention_scale == 0.25f);
}

TEST_CASE("windows of phi3 and mistral count where they bite") {
  TinyModel m("phi3");
  m.set("attention.sliding_window", TinyModel::u32(31));
  CHECK(config_of(m).kv_groups[0].window == 31);
  m.set("attention.sliding_window", TinyModel::u32(262144));
  CHECK(config_of(m).kv_groups[0].window == 0);
  m.set("attention.sliding_window", TinyModel::u32(0));
  CHECK(config_of(m).kv_groups[0].window == 0);
}

TEST_CASE("per-layer head and ffn counts") {
  TinyModel m("llama");
  m.set("attention.head_count_kv", [](GgufWriter& w, const std::string& k) {
    w.numbers<int32_t>(k, 5, {2, 4});
  });
  m.set("feed_forward_length", [](GgufWriter& w, const std::string& k) {
    w.numbers<uint32_t>(k, 4, {24, 32});
  });
  ModelConfig c = config_of(m);
  CHECK(c.kv_groups.size() == 2);
  CHECK(c.layers[1].n_kv_heads == 4);
  CHECK(c.layers[1].ffn_dim == 32);
  m.set("attention.head_count_kv", [](GgufWriter& w, const std::string& k) {
    w.numbers<int32_t>(k, 5, {2, 4, 4});
  });
  CHECK_THAT(config_error(m), Contains("one number, or 2 (one a layer), found 3 numbers"));
  m.set("attention.head_count_kv", [](GgufWriter& w, const std::string& k) {
    w.numbers<int32_t>(k, 5, {2, -1});
  });
  CHECK_THAT(config_error(m), Contains("from 1 to 4096, found -1 for layer 1"));
  m.set("attention.head_count_kv", [](GgufWriter& w, const std::string& k) {
    w.texts(k, {"2", "2"});
  });
  CHECK_THAT(config_error(m), Contains("array of integers"));
}

TEST_CASE("a key out of range is named with found and allowed") {
  CHECK_THAT(
      error_with("block_count", 0u),
      Contains("m.gguf: metadata key \"llama.block_count\" must be from 1 to 4096, found 0"));
  CHECK_THAT(error_with("block_count", 4097u), Contains("found 4097"));
  CHECK_THAT(error_with("block_count", TinyModel::text("2")),
             Contains("must be an integer, found string"));
  CHECK_THAT(error_with("embedding_length", 0u), Contains("from 1 to 1048576, found 0"));
  CHECK_THAT(error_with("context_length", 0u), Contains("context_length\" must be from 1"));
  CHECK_THAT(error_with("context_length", UINT32_MAX), Contains("found 4294967295"));
  CHECK_THAT(error_with("attention.head_count", 0u), Contains("from 1 to 4096, found 0"));
  CHECK_THAT(error_with("attention.head_count", 5u),
             Contains("\"llama.attention.head_count_kv\" must be a divisor of head_count 5"));
  CHECK_THAT(error_with("attention.head_count_kv", 3u),
             Contains("a divisor of head_count 4, found 3 for layer 0"));
  CHECK_THAT(error_with("attention.head_count", 6u), Contains("a divisor of embedding_length 16"));
  CHECK_THAT(error_with("attention.head_count", 16u),
             Contains("even size from 2 to 1024, found a head of 1"));
  CHECK_THAT(error_with("attention.key_length", 5u),
             Contains("\"llama.attention.key_length\" must be such that a head has an even size"));
  CHECK_THAT(error_with("attention.key_length", 2000u), Contains("from 2 to 1024, found 2000"));
  CHECK_THAT(error_with("attention.value_length", 8u),
             Contains("equal to the key length 4, found 8"));
  CHECK_THAT(error_with("feed_forward_length", 0u), Contains("feed_forward_length"));
  CHECK_THAT(error_with("rope.dimension_count", 6u), Contains("from 2 to 4, found 6"));
  CHECK_THAT(error_with("rope.dimension_count", 3u), Contains("must be even, found 3"));
  CHECK_THAT(error_with("expert_count", 8u), Contains("mixtures of experts are not served"));
  for (float bad : {0.0f, -1.0f, 1.0f, std::numeric_limits<float>::quiet_NaN()})
    CHECK_THAT(error_with("rope.freq_base", TinyModel::f32(bad)),
               Contains("rope.freq_base\" must be from 1.0001"));
  for (float bad : {0.0f, 1.0f, std::numeric_limits<float>::infinity()})
    CHECK_THAT(error_with("attention.layer_norm_rms_epsilon", TinyModel::f32(bad)),
               Contains("epsilon\" must be from"));
}

TEST_CASE("architecture, kind and vocabulary") {
  TinyModel m("llama");
  m.keys["general.architecture"] = TinyModel::text("mamba");
  CHECK_THAT(config_error(m),
             Contains("\"mamba\" is not served; allowed: gemma3, llama, phi3, qwen2, qwen3"));
  m.keys.erase("general.architecture");
  CHECK_THAT(config_error(m), Contains("\"general.architecture\" is missing; allowed: gemma3"));
  m.keys["general.architecture"] = TinyModel::u32(1);
  CHECK_THAT(config_error(m), Contains("must be a string, found uint32"));
  m.keys["general.architecture"] = TinyModel::text("llama");
  m.keys["general.type"] = TinyModel::text("adapter");
  CHECK_THAT(config_error(m), Contains("\"general.type\" must be \"model\", found \"adapter\""));
  m.keys["general.type"] = TinyModel::text("model");
  CHECK(config_of(m).vocab_size == 10);
  m.tensor("token_embd.weight", {16, 11});
  CHECK_THAT(config_error(m),
             Contains("must have 11 entries (rows of token_embd.weight), found 10"));
  m.tensor("token_embd.weight", {12, 10});
  CHECK_THAT(config_error(m), Contains("shape must be [16, 1..16777216], found [12, 10]"));
  m.tensors.erase("token_embd.weight");
  CHECK_THAT(config_error(m), Contains("\"token_embd.weight\" is missing"));
}
