#include "model/stage.h"

#include "base/check.h"

namespace tandem {

ModelConfig stage_config(const ModelConfig& config, int first, int last) {
  CHECK(0 <= first && first < last && last <= config.n_layers);
  ModelConfig stage = config;
  stage.n_layers = last - first;
  stage.layers.assign(config.layers.begin() + first, config.layers.begin() + last);
  for (KvGroup& group : stage.kv_groups) {
    std::vector<int> layers;
    for (int layer : group.layers) {
      if (layer >= first && layer < last) layers.push_back(layer - first);
    }
    group.layers = std::move(layers);
  }
  return stage;
}

ModelWeights stage_weights(const ModelWeights& weights, int first, int last) {
  CHECK(0 <= first && first < last && last <= static_cast<int>(weights.layers.size()));
  ModelWeights stage;
  stage.layers.assign(weights.layers.begin() + first, weights.layers.begin() + last);
  if (first == 0) stage.token_embedding = weights.token_embedding;
  if (last == static_cast<int>(weights.layers.size())) {
    stage.output = weights.output;
    stage.output_norm = weights.output_norm;
  }
  return stage;
}

}  // namespace tandem
