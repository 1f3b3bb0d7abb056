// The two real models: configuration and every weight's shape and place.
#include <fcntl.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "model/weights.h"

using namespace tandem;

namespace {

std::unique_ptr<GgufModel> open_real(const std::string& name) {
  const char* dir = std::getenv("TANDEM_MODELS_DIR");
  if (dir == nullptr) FAIL("TANDEM_MODELS_DIR is not set: the folder of the two test models");
  std::string path = std::string(dir) + "/" + name;
  std::vector<GgufFile> files;
  files.push_back({UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path});
  auto model = GgufModel::open(std::move(files));
  REQUIRE(model.status().message() == "");
  return std::move(model).value();
}

}  // namespace

TEST_CASE("SmolLM2: configuration and weights", "[golden]") {
  auto file = open_real("SmolLM2-135M-Instruct.Q4_1.gguf");
  auto config = read_model_config(*file);
  REQUIRE(config.status().message() == "");
  CHECK(config->architecture == "llama");
  CHECK(config->n_layers == 30);
  CHECK(config->hidden_dim == 576);
  CHECK(config->vocab_size == 49152);
  CHECK(config->context_tokens == 8192);
  CHECK(config->layers[29].n_heads == 9);
  CHECK(config->layers[29].n_kv_heads == 3);
  CHECK(config->layers[29].head_dim == 64);
  CHECK(config->layers[29].ffn_dim == 1536);
  CHECK(config->tied_embeddings);
  CHECK(config->attention_scale == 0.125f);
  CHECK(config->norm_eps == 1e-5f);
  CHECK(config->n_parameters == 134515008);
  REQUIRE(config->ropes.size() == 1);
  CHECK(config->ropes[0].style == RopeStyle::kInterleaved);
  CHECK(config->ropes[0].inv_freq.size() == 32);
  CHECK(config->ropes[0].inv_freq[0] == 1.0f);
  CHECK(config->ropes[0].inv_freq[16] == Approx(std::pow(1e5, -0.5)));
  REQUIRE(config->kv_groups.size() == 1);
  CHECK(config->kv_groups[0].layers.size() == 30);

  auto weights = load_weights(*file, *config);
  REQUIRE(weights.status().message() == "");
  CHECK(weights->output.data == weights->token_embedding.data);
  CHECK(weights->layers.size() == 30);
  CHECK(weights->layers[3].wk.n_rows == 192);
  CHECK(weights->layers[3].w_down.n_cols == 1536);
  CHECK(weights->layers[3].bq.empty());
}

TEST_CASE("gemma-3-270m: windows, two rope bases, norms", "[golden]") {
  auto file = open_real("gemma-3-270m-q4_k_m.gguf");
  auto config = read_model_config(*file);
  REQUIRE(config.status().message() == "");
  CHECK(config->layers[0].head_dim == 256);
  CHECK(config->embedding_scale == std::sqrt(640.0f));
  CHECK(config->attention_scale == 1.0f / 16);
  REQUIRE(config->kv_groups.size() == 2);
  CHECK(config->kv_groups[0].window == 512);
  CHECK(config->kv_groups[0].layers.size() == 15);
  CHECK(config->kv_groups[1].layers == std::vector<int>{5, 11, 17});
  REQUIRE(config->ropes.size() == 2);
  CHECK(config->ropes[0].theta == 1e6f);
  CHECK(config->ropes[1].theta == 1e4f);
  CHECK(config->layers[4].rope == 1);
  CHECK(config->layers[5].rope == 0);
  CHECK(config->layers[5].window == 0);

  auto weights = load_weights(*file, *config);
  REQUIRE(weights.status().message() == "");
  CHECK(weights->layers[17].q_norm.size() == 256);
  CHECK(weights->layers[17].ffn_post_norm.size() == 640);
  CHECK(weights->layers[17].wo.n_cols == 1024);
}
