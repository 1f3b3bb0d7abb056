// A model as the tools use it: opened from descriptors, and run step by step without an engine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpu/input_squares.h"
#include "gguf/gguf_reader.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/step_batch.h"
#include "tokenizer/tokenizer.h"
#include "worker/tool_args.h"

namespace tandem {

Result<std::unique_ptr<GgufModel>> open_tool_model(const ToolArgs& args);
// Of the file. kInvalidArgument, too, where it has ids that a model with vocab_size rows does not know.
Result<std::unique_ptr<Tokenizer>> open_tool_tokenizer(const GgufModel& file, int vocab_size);

// Bytes and multiplications of the weights, for shares of the machine's peak.
struct WeightTotals {
  int64_t layer_bytes = 0, output_bytes = 0;        // as in the file; what one step reads
  int64_t layer_products = 0, output_products = 0;  // multiply-adds a token
};

struct ToolModel {
  std::unique_ptr<GgufModel> file;  // null where load_tool_backend was given it
  const KernelTable* kernels = nullptr;
  std::unique_ptr<Backend> backend;
  WeightTotals weights;
  int n_threads = 1;
  int page_size = 16;
  WeightSet set = WeightSet::kFull;  // of all steps
};
// Loads and packs; progress on stderr. Options: --threads, --force-isa, --activations, --weights.
Result<ToolModel> load_tool_model(const ToolContext& context);
// The same but for the file, which is open already and whose pages are given back. squares: as CpuBackendOptions.
Status load_tool_backend(const ToolContext& context, const GgufModel& file, InputSquares* squares, ToolModel* out);

// Sequences with pages of their own. Confined to one thread.
class StepRunner {
 public:
  // Reserves pages for n_sequences of up to max_tokens; once per backend.
  static Result<StepRunner> create(ToolModel* model, int n_sequences, int max_tokens);
  // Feeds tokens of one sequence from position `first_pos`. all_logits: of every token, else of the
  // last.
  Status feed(int sequence, int first_pos, std::span<const int32_t> tokens, bool all_logits);
  // One token of each of the first tokens.size() sequences, all at position `pos`; logits of all.
  Status decode(int pos, std::span<const int32_t> tokens);

 private:
  std::vector<const PageId*> tables_of(int sequence) const;
  void begin_step(std::span<const int32_t> tokens);
  Backend* backend_ = nullptr;
  int n_groups_ = 0;
  WeightSet set_ = WeightSet::kFull;
  int pages_per_sequence_ = 0;
  std::vector<PageId> pages_;  // [n_sequences][pages_per_sequence], the same in every group
  StepBatch batch_;
};

}  // namespace tandem
