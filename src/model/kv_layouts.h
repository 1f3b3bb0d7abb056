// How the K/V of a model lie in pages: one description for host and device, between which pages cross as they are. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.h"
#include "model/model_config.h"

namespace tandem {

struct KvLayouts {
  std::vector<KvLayout> of_layers;  // [n_layers]: where a layer lies in a page of its group
  std::vector<size_t> page_bytes;   // [n_kv_groups]: a multiple of 64
};

// Each layer of a page begins on a cache line of its own.
KvLayouts kv_layouts(const ModelConfig& config, KvType type, int page_size);

}  // namespace tandem
