// The table of model families: one row an architecture, one file arch_<name>.cc a row.
#pragma once

#include <string_view>

#include "base/status.h"
#include "gguf/gguf_reader.h"
#include "model/model_config.h"

namespace tandem {

struct Architecture {
  const char* name;  // general.architecture
  // Fills everything of ModelConfig but what is common (names, tying, counts).
  Status (*read)(const GgufModel& file, ModelConfig* config);
};
const Architecture* find_architecture(std::string_view name);  // nullptr: not served
std::string_view architecture_names();                        // "llama, qwen2, …" for messages

}  // namespace tandem
