// Shapes of the models whose decode is predicted and measured: what a step reads, whatever the values are.
#pragma once

#include <cstdint>

#include "kernels/quant_traits.h"

namespace tandem::bench {

struct Shape {
  const char* name;
  int n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim;
  int64_t vocab;
  GgmlType layers, output;  // weight types
};

constexpr Shape kShapes[] = {
    {"smollm2", 30, 576, 1536, 9, 3, 64, 49152, GgmlType::kQ4_1, GgmlType::kQ4_1},    // SmolLM2-135M
    {"1b", 16, 2048, 8192, 32, 8, 64, 128256, GgmlType::kQ4_K, GgmlType::kQ6_K},      // Llama 3.2 1B
    {"7b", 32, 4096, 11008, 32, 32, 128, 32000, GgmlType::kQ4_K, GgmlType::kQ6_K},    // Llama 2 7B
    {"8b", 32, 4096, 14336, 32, 8, 128, 128256, GgmlType::kQ4_K, GgmlType::kQ6_K},    // Llama 3.1 8B
};

// Bytes that a step reads once, whatever its batch, and for each row: f16 K/V of `context` tokens.
int64_t weight_bytes(const Shape& s);
int64_t kv_bytes(const Shape& s, int64_t context);
constexpr int kLaunchesPerLayer = 5;  // q·k·v; attention; o; gate·up; down
constexpr int launches_per_step(const Shape& s) { return kLaunchesPerLayer * s.n_layers + 4; }  // embed, rotations, logits, sample

// Prints bytes and launches a step of each shape, and tokens/s on cards of a few bandwidths: a prediction, said so.
void print_prediction();

}  // namespace tandem::bench
