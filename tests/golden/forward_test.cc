// The two real models against the float32 references (tests/golden/reference/PROVENANCE.md).
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/golden/golden_data.h"
#include "tests/golden/golden_model.h"
#include "tokenizer/tokenizer.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {
namespace {

struct Bounds {
  double top10;        // largest error of one of the ten likeliest log-probabilities
  int n_compared;      // greedy positions, of 192, whose margin exceeds that error
  double perplexity;   // largest relative error
};

double worst_error(const Logprobs& expected, std::span<const float> logits) {
  const double log_sum = log_sum_exp(logits);
  double worst = 0;
  for (const auto& [token, logprob] : expected) {
    worst = std::max(worst, std::abs(static_cast<double>(logits[token]) - log_sum - logprob));
  }
  return worst;
}

// Teacher-forced with the golden's tokens: the ten likeliest after the prompt, and the argmax wherever the
// golden's margin exceeds the bound.
void check_prompts(const Golden& golden, GoldenModel* model, const Bounds& bounds) {
  int n_compared = 0;
  double worst = 0;
  for (const GoldenPrompt& p : golden.prompts) {
    CAPTURE(p.prompt);
    std::vector<int32_t> ids = p.ids;
    for (size_t i = 0; i + 1 < p.greedy.size(); ++i) ids.push_back(p.greedy[i].token);
    const int first = static_cast<int>(p.ids.size()) - 1;
    model->run(ids, 256, first, [&](int pos, std::span<const float> logits) {
      if (pos == first) worst = std::max(worst, worst_error(p.top10, logits));
      const GoldenPrompt::Greedy& expected = p.greedy[pos - first];
      if (expected.margin <= bounds.top10) return;
      ++n_compared;
      CAPTURE(pos, expected.margin);
      const Likeliest found = likeliest(logits);
    CHECK(found.token == expected.token);
    });
  }
  WARN(golden.model_file << ": worst error of the ten likeliest " << worst << ", allowed " << bounds.top10
                         << "; argmax compared at " << n_compared << " of 192 positions");
  CHECK(worst <= bounds.top10);
  CHECK(n_compared >= bounds.n_compared);
}

std::vector<int32_t> text_ids(const Golden& golden) {
  const auto file = GoldenModel::open(GoldenModel::real_path(golden.model_file));
  auto vocabulary = read_vocabulary(*file);
  REQUIRE(vocabulary.status().message() == "");
  auto tokenizer = Tokenizer::create(std::move(vocabulary).value());
  REQUIRE(tokenizer.status().message() == "");
  std::ifstream in(golden.text.path);
  INFO(golden.text.path);
  REQUIRE(in.good());
  std::stringstream text;
  text << in.rdbuf();
  std::vector<int32_t> ids;
  REQUIRE((*tokenizer)->encode(text.str(), {.add_special = true, .parse_special = false}, &ids).message() == "");
  REQUIRE(ids.size() >= static_cast<size_t>(golden.text.n_tokens));
  ids.resize(golden.text.n_tokens);
  REQUIRE(std::vector<int32_t>(ids.begin(), ids.begin() + 16) == golden.text.first_ids);
  return ids;
}

void check_text(const Golden& golden, GoldenModel* model, const Bounds& bounds) {
  const std::vector<int32_t> ids = text_ids(golden);
  const int n = golden.text.n_tokens;
  double nll = 0, worst = 0;
  model->run(ids, 128, 0, [&](int pos, std::span<const float> logits) {
    if (pos + 1 < n) nll += log_sum_exp(logits) - static_cast<double>(logits[ids[pos + 1]]);
    if (pos + 1 == n) worst = worst_error(golden.text.top10_last, logits);
  });
  const double perplexity = std::exp(nll / (n - 1));
  WARN(golden.model_file << ": perplexity " << perplexity << ", float32 " << golden.text.perplexity
                         << "; worst error at the last position " << worst);
  CHECK(std::abs(perplexity / golden.text.perplexity - 1) <= bounds.perplexity);
  CHECK(worst <= bounds.top10);
}

struct Case {
  const char* name;
  bool float_activations;
  Bounds bounds;
};
// With float32 activations the bounds are those of the reference mode; the references print five
// digits, so a mean over 1535 tokens must agree to 2e-3 as well.
const Case kCases[] = {
    {"smollm2", true, {2e-3, 190, 2e-3}},
    {"gemma3", true, {2e-3, 190, 2e-3}},
    {"smollm2", false, {0.05, 180, 0.01}},
    {"gemma3", false, {0.25, 165, 0.01}},
};

}  // namespace

TEST_CASE("prompts of real models: ten likeliest tokens and greedy continuations", "[golden]") {
  for (const Case& c : kCases) {
    CAPTURE(c.name, c.float_activations);
    const Golden golden = load_golden(c.name);
    GoldenModel model(GoldenModel::real_path(golden.model_file), c.float_activations, 64);
    check_prompts(golden, &model, c.bounds);
  }
}

TEST_CASE("a long text on real models: perplexity and ten likeliest tokens", "[golden]") {
  for (const Case& c : kCases) {
    CAPTURE(c.name, c.float_activations);
    const Golden golden = load_golden(c.name);
    GoldenModel model(GoldenModel::real_path(golden.model_file), c.float_activations, 1600);
    check_text(golden, &model, c.bounds);
  }
}

TEST_CASE("a real model's bits do not depend on chunks: decode equals prefill", "[golden]") {
  for (const char* name : {"smollm2", "gemma3"}) {
    CAPTURE(name);
    const Golden golden = load_golden(name);
    GoldenModel model(GoldenModel::real_path(golden.model_file), false, 600);
    std::vector<int32_t> ids = text_ids(golden);
    ids.resize(540);  // past gemma's window of 512
    std::vector<float> whole;
    const auto keep = [](std::vector<float>* all) {
      return [all](int, std::span<const float> logits) { all->insert(all->end(), logits.begin(), logits.end()); };
    };
    const int first = 528;
    model.run(ids, 540, first, keep(&whole));
    for (int chunk : {1, 7, 64}) {
      std::vector<float> pieces;
      model.run(ids, chunk, first, keep(&pieces));
      CAPTURE(chunk);
      REQUIRE(pieces.size() == whole.size());
      CHECK(std::memcmp(pieces.data(), whole.data(), whole.size() * sizeof(float)) == 0);
    }
  }
}

}  // namespace tandem
