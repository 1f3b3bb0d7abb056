// Arithmetic alone: bytes a token over bandwidth, and launches a step at the cost of a node of a graph.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/tile_layout.h"
#include "tests/bench/gpu/shapes.h"

namespace tandem::bench {
namespace {

int64_t matrix_bytes(GgmlType type, int64_t n_rows, int64_t n_cols) {
  return static_cast<int64_t>(tiled::packed_bytes(type, n_rows, n_cols));
}

// Cards of the sizes the appliance is for, their bandwidth as their makers state it.
struct Card {
  const char* name;
  double gb, gb_per_s;
};
constexpr Card kCards[] = {
    {"T400 4GB", 4, 80}, {"Jetson Orin Nano 8GB", 8, 102}, {"T1000 8GB", 8, 160}, {"RTX A2000 6GB", 6, 288}, {"RTX 4060 8GB", 8, 272}};
constexpr double kUsable = 0.9;  // of the memory: the rest is the driver's and the workspace
constexpr double kShare = 0.88;          // of the bandwidth: the goal of issue 7 for a 7B shape
constexpr double kNodeMicroseconds = 1.5;  // from one small kernel of a graph to the next
constexpr int64_t kContext = 2048;

}  // namespace

int64_t weight_bytes(const Shape& s) {
  const int64_t q = int64_t{s.n_heads} * s.head_dim, kv = int64_t{s.n_kv_heads} * s.head_dim;
  const int64_t layer = matrix_bytes(s.layers, q, s.hidden) + 2 * matrix_bytes(s.layers, kv, s.hidden) + matrix_bytes(s.layers, s.hidden, q) +
                        2 * matrix_bytes(s.layers, s.ffn, s.hidden) + matrix_bytes(s.layers, s.hidden, s.ffn);
  return layer * s.n_layers + matrix_bytes(s.output, s.vocab, s.hidden);
}

int64_t kv_bytes(const Shape& s, int64_t context) {
  return context * s.n_layers * 2 * s.n_kv_heads * s.head_dim * 2;
}

void print_prediction() {
  fmt::print("PREDICTION, not a measurement: bytes a step over {:.0f} % of the stated bandwidth, or {} us a launch, whichever is longer;\n"
             "{} tokens of f16 K/V a sequence. -: does not fit.\n\n", kShare * 100, kNodeMicroseconds, kContext);
  fmt::print("{:10}{:>12}{:>14}{:>16}\n", "shape", "weights MB", "K/V MB a row", "launches a step");
  for (const Shape& s : kShapes) {
    fmt::print("{:10}{:12.1f}{:14.1f}{:16}\n", s.name, static_cast<double>(weight_bytes(s)) / 1e6,
               static_cast<double>(kv_bytes(s, kContext)) / 1e6, launches_per_step(s));
  }
  fmt::print("\ntokens/s at batch {:>11}{:>10}{:>10}{:>10}\n", 1, 4, 16, 64);
  for (const Card& card : kCards) {
    for (const Shape& s : kShapes) {
      fmt::print("{:22}{:8}", card.name, s.name);
      for (int batch : {1, 4, 16, 64}) {
        const double bytes = static_cast<double>(weight_bytes(s)) + batch * static_cast<double>(kv_bytes(s, kContext));
        const double seconds = std::max(bytes / (kShare * card.gb_per_s * 1e9), launches_per_step(s) * kNodeMicroseconds * 1e-6);
        if (bytes > kUsable * card.gb * 1e9) {
          fmt::print("{:>10}", "-");
        } else {
          fmt::print("{:10.1f}", batch / seconds);
        }
      }
      fmt::print("\n");
    }
  }
}

}  // namespace tandem::bench
