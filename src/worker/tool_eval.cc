// tandem eval: perplexity of a text under the model. Tokens 1.. of each window are scored, given
// all before them in it; a text longer than the context is cut into windows of the context's
// length.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/clock.h"
#include "worker/tool_args.h"
#include "worker/tool_model.h"

namespace tandem {

namespace {

constexpr size_t kChunk = 64;  // tokens whose logits are held at once; 67 MB for 262,144 tokens

struct Score {
  double nll = 0;
  int64_t n_scored = 0;
};

void show_progress(const Score& score, size_t done, size_t total, int64_t start_us) {
  if (!isatty(STDERR_FILENO) && done < total) return;
  const double seconds = static_cast<double>(monotonic_us() - start_us) / 1e6;
  std::fprintf(stderr, "%s%zu of %zu tokens, perplexity %.4f, %.0f tokens/s%s",
               isatty(STDERR_FILENO) ? "\r" : "", done, total,
               score.n_scored > 0 ? std::exp(score.nll / static_cast<double>(score.n_scored)) : 0.0,
               static_cast<double>(done) / std::max(seconds, 1e-6), done == total ? "\n" : "");
}

// Scores ids[1..] given what precedes them; they fit the context.
Status score_window(const ToolModel& model, StepRunner* runner, std::span<const int32_t> ids,
                    Score* score) {
  for (size_t at = 0; at + 1 < ids.size(); at += kChunk) {
    const auto chunk = ids.subspan(
        at, std::min(kChunk, ids.size() - 1 - at));  // the last token predicts nothing here
    CHECK_OK(runner->feed(0, static_cast<int>(at), chunk, true));
    for (size_t i = 0; i < chunk.size(); ++i) {
      const std::span<const float> row = model.backend->logits(static_cast<int>(i));
      const double sum = model.kernels->log_sum_exp(row.data(), static_cast<int64_t>(row.size()));
      score->nll += sum - static_cast<double>(row[static_cast<size_t>(ids[at + i + 1])]);
      score->n_scored += 1;
    }
  }
  return {};
}

Result<std::vector<int32_t>> read_ids(const ToolContext& context, const GgufModel& file,
                                      int vocab_size) {
  CHECK_ASSIGN(const auto tokenizer, open_tool_tokenizer(file, vocab_size));
  CHECK_ASSIGN(const std::string text, read_tool_text(context.args));
  CHECK_ASSIGN(const int64_t n_tokens, context.args.number("--tokens", 0, 0, INT64_MAX));
  std::vector<int32_t> ids;
  CHECK_OK(tokenizer->encode(text, {true, false}, &ids));
  if (n_tokens > 0 && static_cast<uint64_t>(n_tokens) < ids.size())
    ids.resize(static_cast<size_t>(n_tokens));
  if (ids.size() < 2)
    return invalid_argument("the text has fewer than two tokens; nothing can be scored");
  return ids;
}

}  // namespace

Result<int> tool_eval(const ToolContext& context) {
  CHECK_ASSIGN(ToolModel model, load_tool_model(context));
  const ModelConfig& config = model.backend->config();
  CHECK_ASSIGN(const std::vector<int32_t> ids, read_ids(context, *model.file, config.vocab_size));
  const size_t window = std::min(ids.size(), static_cast<size_t>(config.context_tokens));
  CHECK_ASSIGN(StepRunner runner, StepRunner::create(&model, 1, static_cast<int>(window)));
  Score score;
  const int64_t start_us = monotonic_us();
  for (size_t at = 0; at < ids.size(); at += window) {
    const auto part = std::span(ids).subspan(at, std::min(window, ids.size() - at));
    CHECK_OK(score_window(model, &runner, part, &score));
    show_progress(score, at + part.size(), ids.size(), start_us);
  }
  const double mean = score.nll / static_cast<double>(score.n_scored);
  const char* form = context.args.has("--json")
                         ? "{{\"tokens\":{},\"scored\":{},\"mean_nll\":{:.6f},\"perplexity\":{:.6f}"
                           ",\"window\":{}}}\n"
                         : "tokens {}, scored {}, mean negative log-likelihood {:.5f}, perplexity "
                           "{:.4f} (window {})\n";
  std::fputs(
      fmt::format(fmt::runtime(form), ids.size(), score.n_scored, mean, std::exp(mean), window)
          .c_str(),
      stdout);
  return 0;
}

}  // namespace tandem
