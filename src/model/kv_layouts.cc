#include "model/kv_layouts.h"

#include "kernels/kv_layout.h"

namespace tandem {

KvLayouts kv_layouts(const ModelConfig& config, KvType type, int page_size) {
  constexpr size_t kLine = 64;
  KvLayouts all{std::vector<KvLayout>(config.layers.size()), {}};
  for (const KvGroup& group : config.kv_groups) {
    KvLayout layout;
    layout.type = type;
    layout.page_size = page_size;
    layout.n_kv_heads = group.n_kv_heads;
    layout.head_dim = group.head_dim;
    const size_t layer_bytes =
        (2 * static_cast<size_t>(group.n_kv_heads) * kv_head_bytes(layout) + kLine - 1) / kLine * kLine;
    layout.page_bytes = layer_bytes * group.layers.size();
    for (size_t i = 0; i < group.layers.size(); ++i) {
      layout.layer_offset = layer_bytes * i;
      all.of_layers[static_cast<size_t>(group.layers[i])] = layout;
    }
    all.page_bytes.push_back(layout.page_bytes);
  }
  return all;
}

}  // namespace tandem
