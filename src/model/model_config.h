// What a model is, as plain data: read from the file's metadata by arch_<name>.cc, used by every backend.
// Nothing here assumes GGUF. Head sizes, windows and rope are per layer from the start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

enum class Activation { kSiluGate, kGeluTanhGate };
enum class RopeStyle { kInterleaved, kNeox };

struct RopeParams {
  int dim = 0;            // rotated values per head
  float theta = 10000.0f;
  RopeStyle style = RopeStyle::kNeox;
  // Turns per position of pair i, length dim/2, with theta and all scaling (linear, llama3, yarn,
  // longrope) already in; angle = position * inv_freq[i].
  std::vector<float> inv_freq;
  float attention_factor = 1.0f;  // multiplies cos and sin (yarn, longrope)
};

struct LayerConfig {
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int ffn_dim = 0;
  int window = 0;       // 0: full attention; else keys with pos - window < key <= pos
  int rope = 0;         // index into ModelConfig::ropes
  int kv_group = 0;     // index into ModelConfig::kv_groups
};

// Layers whose K/V pages live and die together (same window, heads and head size).
struct KvGroup {
  int window = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  std::vector<int> layers;  // ascending
};

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", …
  std::string name;          // general.name
  int n_layers = 0;
  int hidden_dim = 0;
  int vocab_size = 0;
  int context_tokens = 0;    // trained context
  float norm_eps = 1e-5f;
  Activation activation = Activation::kSiluGate;
  float embedding_scale = 1.0f;   // gemma: sqrt(hidden_dim)
  float attention_scale = 0.0f;   // multiplies q·k
  float attention_softcap = 0.0f;
  float logit_softcap = 0.0f;
  bool has_qkv_bias = false;      // qwen2
  bool has_qk_norm = false;       // qwen3, gemma3
  bool has_post_norms = false;    // gemma3: norms after attention and after ffn
  bool tied_embeddings = false;
  std::vector<RopeParams> ropes;
  std::vector<LayerConfig> layers;
  std::vector<KvGroup> kv_groups;
  int64_t n_parameters = 0;
};

}  // namespace tandem
