// Both real models on the stand-in, a few tokens each: the text is the processor's up to the first near-tie. Built
// without observation (FAST): all weights are read for every token.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "gpu/gpu_backend.h"
#include "simt.h"
#include "tests/golden/golden_model.h"

namespace tandem {
namespace {

constexpr int kContext = 128;
// Largest difference of two log-probabilities between processor and device (design.md 6's bound on a near-tie).
constexpr double kNearTie = 0.1;

// log-probabilities' margins and tokens of a greedy continuation. `forced`: fed instead of what was drawn, so that both
// sides see the same history.
struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<double> margins;
};
Drawn continue_greedily(Backend* backend, std::vector<int32_t> ids, int n, const std::vector<int32_t>* forced) {
  std::vector<PageId> pages(kContext / 16);
  std::iota(pages.begin(), pages.end(), 0);
  Drawn drawn;
  int first = 0;
  while (static_cast<int>(drawn.tokens.size()) < n) {
    StepBatch batch;
    StepItem item;
    item.first_pos = first;
    item.n_tokens = static_cast<int>(ids.size()) - first;
    item.page_tables.assign(backend->config().kv_groups.size(), pages.data());
    batch.items.push_back(item);
    batch.tokens.assign(ids.begin() + first, ids.end());
    batch.logit_rows.push_back(item.n_tokens - 1);
    REQUIRE(backend->forward(batch).message() == "");
    const Likeliest best = likeliest(backend->logits(0));
    drawn.tokens.push_back(best.token);
    drawn.margins.push_back(best.margin);
    first = static_cast<int>(ids.size());
    ids.push_back(forced != nullptr ? (*forced)[drawn.tokens.size() - 1] : best.token);
  }
  return drawn;
}

void compare(const std::string& file, std::vector<int32_t> prompt, int n_tokens) {
  const std::string path = GoldenModel::real_path(file);
  GoldenModel cpu(path, false, kContext);
  const Drawn expected = continue_greedily(&cpu.backend(), prompt, n_tokens, nullptr);

  const auto model = GoldenModel::open(path);
  auto config = read_model_config(*model);
  REQUIRE(config.ok());
  auto weights = load_weights(*model, *config);
  REQUIRE(weights.ok());
  auto gpu = open_gpu(0);
  REQUIRE(gpu.status().message() == "");
  GpuOptions options;
  options.context_tokens = kContext;
  options.max_batch_size = 1;
  options.n_threads = 2;
  options.measures_paths = false;  // seconds a step here, and no measure of anything
  auto backend = create_gpu_backend(*config, *weights, *gpu, options);
  REQUIRE(backend.status().message() == "");
  REQUIRE((*backend)->reserve_pages(std::vector<int>(config->kv_groups.size(), kContext / 16)).message() == "");
  simt::clear_counters();
  const auto begin = std::chrono::steady_clock::now();
  const Drawn got = continue_greedily(backend->get(), prompt, n_tokens, &expected.tokens);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%s: %d tokens after %zu in %.1f s, %.1f launches a layer and step\n", file.c_str(), n_tokens, prompt.size(), seconds,
              static_cast<double>(simt::counters().launches) / n_tokens / config->n_layers);
  for (int i = 0; i < n_tokens; ++i) {
    INFO("token " << i << ", margin " << expected.margins[static_cast<size_t>(i)]);
    if (expected.margins[static_cast<size_t>(i)] > kNearTie) CHECK(got.tokens[static_cast<size_t>(i)] == expected.tokens[static_cast<size_t>(i)]);
  }
  CHECK(simt::reports().empty());
}

}  // namespace

TEST_CASE("SmolLM2 decodes on the stand-in as on the processor") {
  compare("SmolLM2-135M-Instruct.Q4_1.gguf", {1, 9690, 198, 2683, 359, 253, 5356}, 5);
}
TEST_CASE("gemma 3 decodes on the stand-in as on the processor") {
  compare("gemma-3-270m-q4_k_m.gguf", {2, 818, 5279, 529, 7001, 563}, 3);
}

}  // namespace tandem
