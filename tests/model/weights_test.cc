// Every tensor a family needs is found, checked and, where fused, split.
#include "model/weights.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/weight_check.h"
#include "tests/model/tiny_model.h"

using namespace tandem;
using Catch::Matchers::Contains;
using tandem::testing::GgufWriter;
using tandem::testing::TinyModel;

namespace {

Result<ModelWeights> load(TinyModel& m, std::unique_ptr<GgufModel>* file) {
  *file = m.open();
  auto config = read_model_config(**file);
  REQUIRE(config.status().message() == "");
  return load_weights(**file, *config);
}
std::string load_error(TinyModel& m) {
  std::unique_ptr<GgufModel> file;
  auto weights = load(m, &file);
  REQUIRE_FALSE(weights.ok());
  return weights.status().message();
}
float first_value(const WeightView& w) {
  float v = 0;
  std::memcpy(&v, w.data, sizeof v);
  return v;
}

}  // namespace

TEST_CASE("a model is mostly Q8_0 by bytes, a tied output counting once") {
  const uint8_t file[3] = {};
  const auto view = [&](GgmlType type, int64_t n_rows, int at) { return WeightView{type, n_rows, 256, file + at}; };
  ModelWeights w;
  w.token_embedding = w.output = view(GgmlType::kQ4_0, 100, 0);
  CHECK_FALSE(is_mostly_q8_0(w));
  w.layers.resize(2);
  w.layers[0].w_down = w.layers[1].wq = view(GgmlType::kQ8_0, 50, 1);
  CHECK(row_bytes(w.layers[0].w_down) == 8 * 34);
  CHECK(is_mostly_q8_0(w));  // 100 rows each, but of 34 bytes a block against 18
  w.output = view(GgmlType::kQ4_0, 100, 2);
  CHECK_FALSE(is_mostly_q8_0(w));  // 27,200 of 56,000 bytes
}

TEST_CASE("each family loads, and misses any one of its tensors by name") {
  for (const char* arch : {"llama", "qwen2", "qwen3", "gemma3", "phi3"}) {
    TinyModel m(arch);
    std::unique_ptr<GgufModel> file;
    auto weights = load(m, &file);
    INFO(arch);
    REQUIRE(weights.status().message() == "");
    CHECK(weights->layers.size() == 2);
    for (const auto& [name, t] : m.tensors) {
      if (name == "token_embd.weight") continue;  // read_model_config wants it first
      TinyModel without(arch);
      without.tensors.erase(name);
      INFO("without " << name);
      std::string error = load_error(without);
      bool fused = name.find("attn_qkv") != name.npos;  // then the separate ones are asked for
      CHECK_THAT(error,
                 Contains(fused ? "attn_q.weight\" is missing" : "\"" + name + "\" is missing"));
    }
  }
}

TEST_CASE("a wrong shape, type or value is named; so is a tensor that nobody would use") {
  TinyModel m("llama");
  m.tensor("blk.1.attn_k.weight", {16, 16});
  CHECK_THAT(
      load_error(m),
      Contains("m.gguf: tensor \"blk.1.attn_k.weight\": shape must be [16, 8], found [16, 16]"));
  m = TinyModel("llama");
  m.tensor("blk.0.attn_norm.weight", {8});
  CHECK_THAT(load_error(m), Contains("shape must be [16], found [8]"));
  m = TinyModel("llama");
  m.tensor("blk.0.ffn_gate.weight", {16, 24, 2});
  CHECK_THAT(load_error(m), Contains("found [16, 24, 2]"));
  m = TinyModel("llama");
  m.tensor("output.weight", {16, 9});
  CHECK_THAT(load_error(m), Contains("\"output.weight\": shape must be [16, 10], found [16, 9]"));
  m = TinyModel("llama");
  m.tensors["blk.0.ffn_gate.weight"].type = 26;  // I32
  CHECK_THAT(load_error(m), Contains("does not hold weights"));
  m = TinyModel("llama");
  m.tensor("blk.0.attn_norm.weight", {16}, std::numeric_limits<float>::quiet_NaN());
  CHECK_THAT(load_error(m), Contains("value 0 must be finite, found nan"));
  m = TinyModel("llama");
  m.tensor("blk.0.ffn_up.bias", {24});
  CHECK_THAT(load_error(m),
             Contains("tensor \"blk.0.ffn_up.bias\" is not known to architecture llama"));
}

TEST_CASE("untied output, biases of llama") {
  TinyModel m("llama");
  m.tensor("output.weight", {16, 10}, 5.0f);
  m.tensor("blk.0.attn_output.bias", {16}, 2.0f);
  std::unique_ptr<GgufModel> file;
  auto w = load(m, &file);
  REQUIRE(w.status().message() == "");
  CHECK(first_value(w->output) == 5.0f);
  CHECK(first_value(w->token_embedding) == 1.0f);
  CHECK(w->layers[0].bo == std::vector<float>(16, 2.0f));
  CHECK(w->layers[1].bo.empty());
  CHECK(w->layers[0].bq.empty());
}

TEST_CASE("phi3: fused rows are split in the order q, k, v and gate, up") {
  TinyModel m("phi3");
  std::unique_ptr<GgufModel> file;
  auto w = load(m, &file);
  REQUIRE(w.status().message() == "");
  const LayerWeights& layer = w->layers[1];  // value i of a fused tensor is i; a row has 16
  CHECK(first_value(layer.wq) == 0);
  CHECK(first_value(layer.wk) == 16 * 16);
  CHECK(first_value(layer.wv) == 16 * 24);
  CHECK(layer.wq.n_rows == 16);
  CHECK(layer.wv.n_rows == 8);
  CHECK(first_value(layer.w_gate) == 0);
  CHECK(first_value(layer.w_up) == 16 * 24);
  CHECK(layer.w_up.n_rows == 24);
}

TEST_CASE("phi3: rows of a quantized fused tensor begin at block borders") {
  TinyModel m("phi3");
  for (const char* suffix : {"embedding_length"}) m.set(suffix, TinyModel::u32(32));
  m.set("attention.key_length", TinyModel::u32(4));
  m.tensors.clear();
  auto q8 = [&m](const std::string& name, uint64_t n_cols, uint64_t n_rows) {
    std::string data;
    for (uint64_t r = 0; r < n_rows * (n_cols / 32); ++r)
      data += std::string(34, static_cast<char>(r));
    m.tensors[name] = {name, {n_cols, n_rows}, 8, data, -1, -1};
  };
  q8("token_embd.weight", 32, 10);
  m.tensor("output_norm.weight", {32});
  for (std::string p : {"blk.0.", "blk.1."}) {
    m.tensor(p + "attn_norm.weight", {32});
    m.tensor(p + "ffn_norm.weight", {32});
    q8(p + "attn_qkv.weight", 32, 32);
    q8(p + "ffn_up.weight", 32, 48);
    m.tensor(p + "attn_output.weight", {16, 32});
    m.tensor(p + "ffn_down.weight", {24, 32});
  }
  std::unique_ptr<GgufModel> file;
  auto w = load(m, &file);
  REQUIRE(w.status().message() == "");
  CHECK(w->layers[0].wk.data[0] == 16);
  CHECK(w->layers[0].wv.data[0] == 24);
  CHECK(w->layers[0].w_up.data[0] == 24);
}

TEST_CASE("C-39: a scale that is no number is found, in every weight type") {
  int n_types = 0, n_checked = 0;
  const QuantTraits* all = quant_traits_all(&n_types);
  for (int t = 0; t < n_types; ++t) {
    const QuantTraits& traits = all[t];
    if (traits.dequantize_row == nullptr) continue;
    INFO(traits.name);
    constexpr int kRows = 5, kRowBlocks = 3, kBad = 2 * kRowBlocks + 1;
    std::vector<uint8_t> data(static_cast<size_t>(kRows * kRowBlocks * traits.block_bytes), 0x01);
    WeightView w{traits.type, kRows, kRowBlocks * traits.block_size, data.data()};
    REQUIRE(check_finite_rows(w, 0, kRows).ok());
    // Whatever pair of bytes makes a value not finite must be found, and nothing else.
    for (int at = 0; at < traits.block_bytes; ++at) {
      std::vector<uint8_t> saved = data;
      for (int i = at; i < std::min(at + 2, traits.block_bytes); ++i)
        data[static_cast<size_t>(kBad * traits.block_bytes + i)] = 0xff;
      std::vector<float> row(static_cast<size_t>(w.n_cols));
      int64_t row_bytes = kRowBlocks * traits.block_bytes;
      traits.dequantize_row(data.data() + 2 * row_bytes, w.n_cols, row.data());
      bool is_finite =
          std::all_of(row.begin(), row.end(), [](float v) { return std::isfinite(v); });
      Status s = check_finite_rows(w, 0, kRows);
      CHECK(s.ok() == is_finite);
      if (!is_finite) {
        CHECK_THAT(s.message(), Catch::Matchers::StartsWith("row 2, block 1 of type "));
        CHECK(check_finite_rows(w, 3, kRows).ok());
        CHECK_FALSE(check_finite_rows(w, 2, 3).ok());
        ++n_checked;
      }
      data = saved;
    }
  }
  CHECK(n_checked >= n_types - 5);
}
