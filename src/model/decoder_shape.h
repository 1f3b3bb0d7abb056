// What all served families share: a stack of attention + gated feed-forward layers. The arch_*.cc
// files call this first and then say where they differ.
#pragma once

#include "base/status.h"
#include "model/config_reader.h"
#include "model/model_config.h"

namespace tandem {

// Layers, widths, heads, context, norm epsilon, softcaps; attention_scale = 1/sqrt(head_dim) unless
// the file says otherwise. All layers full attention.
Status read_decoder_shape(const ConfigReader& keys, ModelConfig* config);

// `attention.sliding_window` (0 or absent: none) for all layers. A window that no position leaves
// is none.
Status read_uniform_window(const ConfigReader& keys, ModelConfig* config);

// Fills kv_groups and LayerConfig::kv_group from the layers.
void group_layers(ModelConfig* config);

}  // namespace tandem
