#include "cpu/input_squares.h"

namespace tandem {

InputSquares make_input_squares(const ModelConfig& config) {
  const auto zeros = [](int64_t n_cols) { return ColumnSquares{std::vector<double>(static_cast<size_t>(n_cols)), 0}; };
  InputSquares squares;
  for (const LayerConfig& l : config.layers) {
    squares.layers.push_back({zeros(config.hidden_dim), zeros(static_cast<int64_t>(l.n_heads) * l.head_dim),
                              zeros(config.hidden_dim), zeros(l.ffn_dim)});
  }
  squares.output = zeros(config.hidden_dim);
  return squares;
}

}  // namespace tandem
