#include "worker/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "base/file_hash.h"
#include "gguf/gguf_parser.h"
#include "tokenizer/utf8.h"
#include "worker/tool_model.h"
#include "worker/tool_progress.h"

namespace tandem {

namespace {

constexpr int64_t kDefaultTokens = 4096, kFewestTokens = 256, kMostTokens = 1000000;
constexpr size_t kBytesPerToken = 64;  // of the text are looked at at most; words have about 5
constexpr int kWindow = 512;           // tokens; as imatrix files are made with
constexpr size_t kStep = 64;           // tokens whose logits are held at once; 67 MB for 262,144 tokens

Status not_served(const Status& why) {
  return Status(why.code(), fmt::format("--calibration runs the text through the model, which fails: {}; leave --calibration out, or "
                                        "name a model that can be served",
                                        why.message()));
}

// The first max_bytes of valid text, but no part of a code point.
std::string_view begin_of(std::string_view text, size_t max_bytes) {
  size_t n = std::min(text.size(), max_bytes);
  while (n > 0 && n < text.size() && (static_cast<uint8_t>(text[n]) & 0xC0) == 0x80) --n;
  return text.substr(0, n);
}

const GgufTensor* tensor_at(const GgufModel& file, const uint8_t* data) {
  for (const GgufTensor& t : file.tensors()) {
    if (data >= t.data && data < t.data + t.n_bytes) return &t;
  }
  return nullptr;
}

}  // namespace

Calibration::Calibration(const GgufModel& file, ModelConfig config)
    : file_(file), config_(std::move(config)), squares_(make_input_squares(config_)) {}

Result<std::unique_ptr<Calibration>> Calibration::create(const ToolContext& context, const GgufModel& file) {
  auto config = read_model_config(file);
  if (!config.ok()) return not_served(config.status());
  const auto model = load_weights(file, *config);
  if (!model.ok()) return not_served(model.status());
  std::unique_ptr<Calibration> calibration(new Calibration(file, std::move(config).value()));
  calibration->find_matrices(*model);
  CHECK_OK(calibration->read_text(context));
  return calibration;
}

void Calibration::find_matrices(const ModelWeights& model) {
  const auto add = [&](std::initializer_list<const WeightView*> views, const ColumnSquares& squares) {
    for (const WeightView* view : views) {
      const GgufTensor* tensor = tensor_at(file_, view->data);
      if (tensor == nullptr) continue;
      matrices_.push_back({tensor, &squares});
      weights_.columns[tensor].resize(squares.sums.size());
    }
  };
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const LayerWeights& w = model.layers[i];
    const InputSquares::Layer& squares = squares_.layers[i];
    add({&w.wq, &w.wk, &w.wv}, squares.qkv);
    add({&w.wo}, squares.o);
    add({&w.w_gate, &w.w_up}, squares.gate_up);
    add({&w.w_down}, squares.down);
  }
  add({&model.output}, squares_.output);
}

Status Calibration::read_text(const ToolContext& context) {
  const std::string name = context.args.text("--calibration", "");
  const std::string said = "--calibration " + printable(name);
  weights_.text_name = utf8_valid_prefix(name) == name.size() ? name : printable(name);
  CHECK_ASSIGN(const int64_t most, context.args.number("--calibration-tokens", kDefaultTokens, kFewestTokens, kMostTokens));
  CHECK_ASSIGN(const std::string text, read_tool_text(context.args));
  if (const size_t valid = utf8_valid_prefix(text); valid != text.size()) {
    return invalid_argument(fmt::format("{}: is not valid UTF-8 at byte {}; allowed: plain text in UTF-8; convert it with iconv, or name "
                                        "another text",
                                        said, valid));
  }
  weights_.text_sha256 = sha256_of_text(text);
  const auto opened = open_tool_tokenizer(file_, config_.vocab_size);
  if (!opened.ok()) return not_served(opened.status());
  const Tokenizer& tokenizer = **opened;
  std::vector<int32_t> ids;
  CHECK_OK(tokenizer.encode(begin_of(text, kBytesPerToken * static_cast<size_t>(most)), {false, false}, &ids));
  ids.resize(std::min(ids.size(), static_cast<size_t>(most)));
  if (static_cast<int64_t>(ids.size()) < kFewestTokens) {
    return invalid_argument(fmt::format("{}: has {} tokens; allowed: {} or more, some thousands are better; name a longer text", said,
                                        ids.size(), kFewestTokens));
  }
  weights_.n_tokens = static_cast<int64_t>(ids.size());
  // Every window begins as the model expects a text to.
  std::vector<int32_t> begin;
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (vocabulary.add_bos && vocabulary.bos >= 0) begin.push_back(vocabulary.bos);
  const size_t room = static_cast<size_t>(window_tokens()) - begin.size();
  for (size_t at = 0; at < ids.size(); at += room) {
    windows_.push_back(begin);
    const auto first = ids.begin() + static_cast<ptrdiff_t>(at);
    windows_.back().insert(windows_.back().end(), first, first + static_cast<ptrdiff_t>(std::min(room, ids.size() - at)));
  }
  weights_.n_windows = static_cast<int64_t>(windows_.size());
  return {};
}

// One token of text at least behind what begins it.
int Calibration::window_tokens() const { return std::clamp(config_.context_tokens, 2, kWindow); }

Status Calibration::run(const ToolContext& context) {
  CHECK_OK(feed(context));
  for (const Matrix& matrix : matrices_) CHECK_OK(set_weights(matrix));
  return {};
}

// The packed weights are gone when it returns: quantizing needs the memory itself.
Status Calibration::feed(const ToolContext& context) {
  ToolModel model;
  CHECK_OK(load_tool_backend(context, file_, &squares_, &model));
  CHECK_ASSIGN(StepRunner runner, StepRunner::create(&model, 1, window_tokens()));
  int64_t n_tokens = 0, n_done = 0;
  for (const auto& window : windows_) n_tokens += static_cast<int64_t>(window.size());
  ToolProgress progress("calibrating", n_tokens, 1, "tokens");
  progress.at(0);
  for (const auto& window : windows_) {
    for (size_t at = 0; at < window.size(); at += kStep) {
      const auto step = std::span(window).subspan(at, std::min(kStep, window.size() - at));
      CHECK_OK(runner.feed(0, static_cast<int>(at), step, true));  // all logits: else the last layer would see but a few
      progress.at(n_done += static_cast<int64_t>(step.size()));
    }
  }
  return {};
}

Status Calibration::set_weights(const Matrix& matrix) {
  const std::vector<double>& sums = matrix.squares->sums;
  double total = 0;
  for (const double sum : sums) total += sum;
  if (!std::isfinite(total)) {
    return data_loss(fmt::format("{}: what tensor \"{}\" is multiplied with under --calibration is no finite number; the file is damaged: "
                                 "fetch it again",
                                 file_.name(), printable(matrix.tensor->name)));
  }
  if (!(total > 0)) return {};  // nothing ever passed here: all columns stay alike
  std::vector<float>& columns = weights_.columns.at(matrix.tensor);
  const double mean = total / static_cast<double>(sums.size());
  std::transform(sums.begin(), sums.end(), columns.begin(), [mean](double sum) { return static_cast<float>(sum / mean); });
  return {};
}

}  // namespace tandem
