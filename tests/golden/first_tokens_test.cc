// The first tokens of the GPL-3 text on both real models, position by position, against the float64 reference
// (tests/golden/first_tokens/PROVENANCE.md): short enough for an emulated processor, where the long text is not.
// Their bounds in the default mode are what rounding the activations can do: computed by rounding them otherwise.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/golden/golden_data.h"
#include "tests/golden/golden_model.h"
#include "tests/kernels/activation_noise.h"

namespace tandem {
namespace {

struct FirstTokens {
  std::string model_file;
  std::vector<int32_t> ids;
  std::vector<double> nll;      // of ids[1..]
  std::vector<Logprobs> top10;  // of the token after each position
};

FirstTokens load_first_tokens(const std::string& name) {
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/tests/golden/first_tokens/" + name + ".json");
  INFO(name);
  REQUIRE(in.good());
  const nlohmann::json json = nlohmann::json::parse(in);
  FirstTokens f{json.at("model"), json.at("ids").get<std::vector<int32_t>>(), json.at("nll").get<std::vector<double>>(), {}};
  for (const auto& entry : json.at("logprobs")) {
    REQUIRE(entry.at(0).get<size_t>() == f.top10.size());
    f.top10.push_back(entry.at(1).get<Logprobs>());
  }
  REQUIRE(f.top10.size() == f.ids.size());
  return f;
}

// Of the ten likeliest after each of `ids`: [position][ten].
std::vector<std::vector<double>> logprobs_of_top10(const FirstTokens& f, const KernelTable& kernels) {
  std::vector<std::vector<double>> all;
  GoldenModel model(GoldenModel::real_path(f.model_file), false, static_cast<int>(f.ids.size()), &kernels);
  model.run(f.ids, 24, 0, [&](int pos, std::span<const float> logits) {
    const double log_sum = log_sum_exp(logits);
    all.emplace_back();
    for (const auto& [token, logprob] : f.top10[pos]) all.back().push_back(static_cast<double>(logits[token]) - log_sum);
  });
  return all;
}

// Of the errors of the ten likeliest at all positions: what the largest exceeds once in a thousand models, and the root of
// their mean square.
struct Bound {
  double largest, rms;
};
Bound computed_bound(const char* name, int n) {
  constexpr uint32_t kSeeds = 12;
  FirstTokens f = load_first_tokens(name);
  f.ids.resize(n);
  std::vector<std::vector<std::vector<double>>> by_position(n);  // [position][seed][ten]
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    const auto run = logprobs_of_top10(f, with_activation_noise(GoldenModel::best_kernels(), seed));
    for (int pos = 0; pos < n; ++pos) by_position[pos].push_back(run[pos]);
  }
  std::vector<double> sigmas;
  for (int pos = 0; pos < n; ++pos) sigmas.insert(sigmas.end(), 10, rounding_sigma(by_position[pos]));
  double squares = 0;
  for (double sigma : sigmas) squares += sigma * sigma;
  return {largest_error(sigmas, 1e-3), std::sqrt(squares / static_cast<double>(sigmas.size()))};
}

// Ids, the ten likeliest after each of the first `n` tokens within `bound`, perplexity within `perplexity` (relative).
void check(const char* name, bool float_activations, int n, Bound bound, double perplexity) {
  CAPTURE(name, float_activations);
  FirstTokens f = load_first_tokens(name);
  const Golden golden = load_golden(name);
  REQUIRE(std::equal(golden.text.first_ids.begin(), golden.text.first_ids.end(), f.ids.begin()));
  f.ids.resize(n);
  GoldenModel model(GoldenModel::real_path(f.model_file), float_activations, n);
  double worst = 0, squares = 0, moved = 0;
  model.run(f.ids, 24, 0, [&](int pos, std::span<const float> logits) {
    const double log_sum = log_sum_exp(logits);
    for (const auto& [token, logprob] : f.top10[pos]) {
      const double off = static_cast<double>(logits[token]) - log_sum - logprob;
      worst = std::max(worst, std::abs(off));
      squares += off * off;
    }
    if (pos + 1 < n) moved += log_sum - static_cast<double>(logits[f.ids[pos + 1]]) - f.nll[pos];
  });
  const double error = std::abs(std::exp(moved / (n - 1)) - 1), rms = std::sqrt(squares / (10 * n));
  WARN(name << (float_activations ? ", float activations" : "") << ": first " << n
            << " tokens: worst error of the ten likeliest " << worst << ", allowed " << bound.largest << ", rms " << rms << ", allowed " << bound.rms
            << "; perplexity moved by a part of " << error << ", allowed " << perplexity);
  CHECK(worst <= bound.largest);
  CHECK(rms <= bound.rms);
  CHECK(error <= perplexity);
}

constexpr Bound kSmolLm2 = {0.2, 0.023}, kGemma3 = {0.13, 0.015}, kExact = {2e-3, 2e-3};

}  // namespace

TEST_CASE("the first tokens of a text on SmolLM2, position by position", "[golden][first]") {
  check("smollm2", false, 64, kSmolLm2, 0.01);
  check("smollm2", true, 16, kExact, 2e-3);
}

TEST_CASE("the first tokens of a text on gemma3, position by position", "[golden][first]") {
  check("gemma3", false, 64, kGemma3, 0.01);
  check("gemma3", true, 8, kExact, 2e-3);
}

TEST_CASE("the bounds of the first tokens follow from the step of the activations", "[golden]") {
  const std::pair<const char*, Bound> rows[] = {{"smollm2", kSmolLm2}, {"gemma3", kGemma3}};
  for (const auto& [name, bound] : rows) {
    const Bound computed = computed_bound(name, 64);
    WARN(name << ": computed for the largest " << computed.largest << ", in use " << bound.largest << "; for the rms "
              << computed.rms << ", in use " << bound.rms);
    CHECK(bound.largest > 0.8 * computed.largest);
    CHECK(bound.largest < 1.25 * computed.largest);
    CHECK(bound.rms > 1.1 * computed.rms);  // its own spread, and halves of K and V that round the other way
    CHECK(bound.rms < 1.5 * computed.rms);
  }
}

}  // namespace tandem
