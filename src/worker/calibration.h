// tandem quantize --calibration: a text goes through the model, and the mean square of what each column of each matrix is
// multiplied with becomes the column's weight. Reads --calibration (the text's name), --calibration-tokens and the text.
//
// DESIGN. The expected square of what a product is off by is the sum of its columns' squared errors times these means, as long as
// columns go together no more than by chance. The text is read in windows, each as a text of its own, as a longer context
// costs more and says little more about the means. Means are divided by their mean: only their ratios matter, and
// so no matrix drowns the others in the error that is told.
#pragma once

#include <memory>
#include <vector>

#include "cpu/input_squares.h"
#include "gguf/gguf_reader.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "quantize/quantize_plan.h"
#include "worker/tool_args.h"

namespace tandem {

// Confined to one thread.
class Calibration {
 public:
  // Reads the text. Nothing is computed yet: weights() has its facts, and zeros for each matrix that the model multiplies with
  // (the embedding only where it is the output, too). kInvalidArgument: the text is empty, too short or no UTF-8. As
  // read_model_config and load_weights: a model that is not served. `file` must outlive it.
  static Result<std::unique_ptr<Calibration>> create(const ToolContext& context, const GgufModel& file);
  // Fills the weights in, with progress on stderr; packs the model for that. kExhausted: no memory for it. kDataLoss: what the
  // model computes is no finite number.
  Status run(const ToolContext& context);
  // What an earlier run computed may be put in instead of run().
  ColumnWeights& weights() { return weights_; }

 private:
  struct Matrix {
    const GgufTensor* tensor;
    const ColumnSquares* squares;  // in squares_
  };
  Calibration(const GgufModel& file, ModelConfig config);
  Status read_text(const ToolContext& context);
  void find_matrices(const ModelWeights& model);
  Status feed(const ToolContext& context);
  Status set_weights(const Matrix& matrix);
  int window_tokens() const;

  const GgufModel& file_;
  const ModelConfig config_;
  InputSquares squares_;
  std::vector<Matrix> matrices_;  // the parts of a fused tensor all name it
  std::vector<std::vector<int32_t>> windows_;
  ColumnWeights weights_;
};

}  // namespace tandem
