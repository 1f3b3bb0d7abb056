// The table of model families: one row an architecture, one file arch_<name>.cc a row.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "model/config_reader.h"
#include "model/model_config.h"

namespace tandem {

struct Architecture {
  const char* name;  // general.architecture, and the prefix of its keys
  // Fills everything of ModelConfig but what is common (names, tying, vocabulary, parameter count,
  // KV groups).
  Status (*read)(const ConfigReader& keys, ModelConfig* config);
};
const Architecture* find_architecture(std::string_view name);  // nullptr: not served
std::string architecture_names();                              // "gemma3, llama, …" for messages

Status read_llama(const ConfigReader& keys, ModelConfig* config);
Status read_qwen2(const ConfigReader& keys, ModelConfig* config);
Status read_qwen3(const ConfigReader& keys, ModelConfig* config);
Status read_gemma3(const ConfigReader& keys, ModelConfig* config);
Status read_phi3(const ConfigReader& keys, ModelConfig* config);

}  // namespace tandem
