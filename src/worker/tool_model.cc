#include "worker/tool_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "cpu/cpu_backend.h"
#include "cpu/isa_select.h"
#include "model/weights.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {

namespace {

void add(const WeightView& w, int64_t* bytes, int64_t* products) {
  const QuantTraits* traits = quant_traits(static_cast<uint32_t>(w.type));
  if (!w || !traits) return;
  *bytes += w.n_rows * (w.n_cols / traits->block_size) * traits->block_bytes;
  *products += w.n_rows * w.n_cols;
}

WeightTotals total_weights(const ModelWeights& weights) {
  WeightTotals t;
  for (const LayerWeights& l : weights.layers) {
    for (const WeightView* w : {&l.wq, &l.wk, &l.wv, &l.wo, &l.w_gate, &l.w_up, &l.w_down}) {
      add(*w, &t.layer_bytes, &t.layer_products);
    }
  }
  add(weights.output, &t.output_bytes, &t.output_products);
  return t;
}

void show_progress(float fraction) {
  if (!isatty(STDERR_FILENO)) return;
  std::fprintf(stderr, "\rrepacking weights %3.0f %%%s", 100.0 * static_cast<double>(fraction),
               fraction >= 1 ? "\n" : "");
}

}  // namespace

Result<std::unique_ptr<GgufModel>> open_tool_model(const ToolArgs& args) {
  if (args.model_fds.empty()) return invalid_argument("--model-fds is needed");
  std::vector<GgufFile> files;
  for (size_t i = 0; i < args.model_fds.size(); ++i) {
    files.push_back({UniqueFd(args.model_fds[i]), args.model_names[i]});
  }
  return GgufModel::open(std::move(files));
}

Result<std::unique_ptr<Tokenizer>> open_tool_tokenizer(const GgufModel& file, int vocab_size) {
  CHECK_ASSIGN(Vocabulary vocabulary, read_vocabulary(file));
  CHECK_ASSIGN(auto tokenizer, Tokenizer::create(std::move(vocabulary)));
  if (tokenizer->n_tokens() > vocab_size) {
    return invalid_argument(fmt::format("tokenizer.ggml.tokens has {} tokens, the model {} rows", tokenizer->n_tokens(), vocab_size));
  }
  return tokenizer;
}

Result<ToolModel> load_tool_model(const ToolContext& context) {
  ToolModel model;
  CHECK_ASSIGN(model.file, open_tool_model(context.args));
  CHECK_OK(load_tool_backend(context, *model.file, nullptr, &model));
  return model;
}

Status load_tool_backend(const ToolContext& context, const GgufModel& file, InputSquares* squares, ToolModel* out) {
  const ToolArgs& args = context.args;
  ToolModel& model = *out;
  CHECK_ASSIGN(const int64_t threads, args.number("--threads", 0, 0, 1024));
  const std::string activations = args.text("--activations", "q8");
  if (activations != "q8" && activations != "f32") {
    return invalid_argument("--activations must be q8 or f32, got \"" + activations + "\"");
  }
  const std::string set = args.text("--weights", "full");
  if (set != "full" && set != "lean") return invalid_argument("--weights must be full or lean, got \"" + set + "\"");
  model.n_threads = threads > 0 ? static_cast<int>(threads) : context.cpu.n_usable_cores;
  CHECK_ASSIGN(const ModelConfig config, read_model_config(file));
  CHECK_ASSIGN(const ModelWeights weights, load_weights(file, config));
  CHECK_ASSIGN(model.kernels, select_kernels(context.cpu, args.text("--force-isa", "")));
  model.weights = total_weights(weights);
  CpuBackendOptions options;
  options.kernels = model.kernels;
  options.n_threads = model.n_threads;
  options.float_activations = activations == "f32";
  options.page_size = model.page_size;
  options.pack.on_progress = show_progress;
  options.squares = squares;
  CHECK_ASSIGN(model.backend, create_cpu_backend(config, weights, options));
  const WeightBytes bytes = model.backend->weight_bytes();
  if (set == "lean") {
    if (bytes.lean == 0) return invalid_argument("--weights lean: there is no lean weight set, only Q8_0 weights have one; of a file that weights.lean "
                                                    "names, its own figures are those: tandem eval or bench --model THAT_FILE");
    model.set = WeightSet::kLean;
    const double share = static_cast<double>(bytes.lean) / static_cast<double>(bytes.full);  // of what a step reads
    model.weights.layer_bytes = std::llround(share * static_cast<double>(model.weights.layer_bytes));
    model.weights.output_bytes = std::llround(share * static_cast<double>(model.weights.output_bytes));
  }
  file.release_pages();
  return {};
}

Result<StepRunner> StepRunner::create(ToolModel* model, int n_sequences, int max_tokens) {
  StepRunner runner;
  runner.backend_ = model->backend.get();
  runner.set_ = model->set;
  runner.n_groups_ = static_cast<int>(runner.backend_->page_bytes().size());
  runner.pages_per_sequence_ = (max_tokens + model->page_size - 1) / model->page_size;
  const int64_t n_pages = int64_t{n_sequences} * runner.pages_per_sequence_;
  if (n_pages > INT32_MAX / 2) {
    return invalid_argument(
        fmt::format("{} sequences of {} tokens are too many", n_sequences, max_tokens));
  }
  runner.pages_.resize(static_cast<size_t>(n_pages));
  for (size_t i = 0; i < runner.pages_.size(); ++i) runner.pages_[i] = static_cast<PageId>(i);
  const std::vector<int> wanted(static_cast<size_t>(runner.n_groups_), static_cast<int>(n_pages));
  CHECK_OK(runner.backend_->reserve_pages(wanted));
  return runner;
}

std::vector<const PageId*> StepRunner::tables_of(int sequence) const {
  const PageId* table = pages_.data() + static_cast<ptrdiff_t>(sequence) * pages_per_sequence_;
  return std::vector<const PageId*>(static_cast<size_t>(n_groups_), table);
}

void StepRunner::begin_step(std::span<const int32_t> tokens) {
  batch_.clear();
  batch_.weights = set_;
  batch_.tokens.assign(tokens.begin(), tokens.end());
}

Status StepRunner::feed(int sequence, int first_pos, std::span<const int32_t> tokens,
                        bool all_logits) {
  begin_step(tokens);
  const int n = static_cast<int>(tokens.size());
  batch_.items.push_back({first_pos, 0, n, tables_of(sequence), false});
  for (int i = all_logits ? 0 : n - 1; i < n; ++i) batch_.logit_rows.push_back(i);
  return backend_->forward(batch_);
}

Status StepRunner::decode(int pos, std::span<const int32_t> tokens) {
  begin_step(tokens);
  for (int i = 0; i < static_cast<int>(tokens.size()); ++i) {
    batch_.items.push_back({pos, i, 1, tables_of(i), true});
    batch_.logit_rows.push_back(i);
  }
  return backend_->forward(batch_);
}

}  // namespace tandem
