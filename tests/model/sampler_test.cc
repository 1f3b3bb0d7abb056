#include "model/sampler.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "model/philox.h"

namespace tandem {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double log_sum_exp(const float* x, int64_t n) {
  const float max = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - max);
  return max + std::log(sum);
}

std::vector<float> random_row(int n, uint32_t seed, float spread = 3.0f) {
  std::mt19937 gen(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(n);
  for (float& x : row) x = normal(gen);
  return row;
}

SampleResult sample(const std::vector<float>& row, const SamplingParams& params,
                    SampleRequest r = {}) {
  static SamplerScratch scratch;
  r.params = &params;
  SampleResult result;
  sample_row(row, r, log_sum_exp, &scratch, &result);
  return result;
}

// The definition: probabilities in descending order after top_k, min_p, top_p, everything sorted.
std::vector<std::pair<int32_t, double>> kept_distribution(const std::vector<float>& row,
                                                          const SamplingParams& p) {
  std::vector<int32_t> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) { return row[a] > row[b]; });
  std::vector<std::pair<int32_t, double>> kept;
  for (int32_t id : ids) {
    kept.emplace_back(id, std::exp((static_cast<double>(row[id]) - row[ids[0]]) / p.temperature));
  }
  if (p.top_k > 0 && kept.size() > static_cast<size_t>(p.top_k)) kept.resize(p.top_k);
  while (kept.back().second < p.min_p) kept.pop_back();
  double mass = 0, sum = 0;
  for (const auto& [id, weight] : kept) mass += weight;
  size_t n = 0;
  while (n < kept.size() && (n == 0 || sum < mass * p.top_p)) sum += kept[n++].second;
  if (p.top_p < 1) kept.resize(n);
  mass = 0;
  for (const auto& [id, weight] : kept) mass += weight;
  for (auto& [id, weight] : kept) weight /= mass;
  return kept;
}

}  // namespace

TEST_CASE("philox answers the published known-answer vectors") {
  using Words = std::array<uint32_t, 4>;
  CHECK(philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
        Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox_uniform is uniform in [0, 1) and differs by seed, choice and position") {
  double sum = 0;
  std::vector<int> buckets(10);
  for (uint32_t i = 0; i < 100000; ++i) {
    const float u = philox_uniform(42, i % 7, i);
    REQUIRE(u >= 0.0f);
    REQUIRE(u < 1.0f);
    sum += u;
    ++buckets[static_cast<int>(u * 10)];
  }
  CHECK(std::abs(sum / 100000 - 0.5) < 0.004);             // 4 sigma of the mean
  for (int n : buckets) CHECK(std::abs(n - 10000) < 400);  // 4 sigma of a bucket
  CHECK(philox_uniform(1, 0, 5) != philox_uniform(2, 0, 5));
  CHECK(philox_uniform(1, 0, 5) != philox_uniform(1ull << 32 | 1, 0, 5));
  CHECK(philox_uniform(1, 0, 5) != philox_uniform(1, 1, 5));
  CHECK(philox_uniform(1, 0, 5) != philox_uniform(1, 0, 6));
}

TEST_CASE("temperature 0 takes the likeliest token, the lowest id on a tie") {
  SamplingParams greedy;
  greedy.temperature = 0;
  CHECK(sample({1, 3, 2, 3, 3}, greedy).token == 1);
  CHECK(sample({-0.0f, 0.0f}, greedy).token == 0);
  CHECK(sample({-5}, greedy).token == 0);
  for (int n : {1, 2, 15, 16, 17, 100, 49152}) {
    const auto row = random_row(n, n);
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    CHECK(sample(row, greedy).token == best);
  }
}

TEST_CASE("logit_bias, penalties and ignore_eos change the row in the stated order") {
  SamplingParams p;
  p.temperature = 0;
  SECTION("logit_bias") {
    p.logit_bias = {{0, 5.0f}, {77, 100.0f}, {-3, 100.0f}};
    CHECK(sample({1, 3, 2}, p).token == 0);
  }
  SECTION("repetition penalty divides positive and multiplies negative logits, once a token") {
    p.repetition_penalty = 2;
    const std::vector<int32_t> prompt{1, 1, 1}, generated{0};
    SampleRequest r;
    r.prompt = prompt;
    r.generated = generated;
    CHECK(sample({2.4f, 2.6f, 1.25f}, p, r).token == 1);  // 1.2, 1.3 (not 0.325), 1.25
    CHECK(sample({-1, -1.1f, -1.9f}, p, r).token == 2);
  }
  SECTION("bias comes before the repetition penalty") {
    p.repetition_penalty = 2;
    p.logit_bias = {{0, 4.0f}};
    const std::vector<int32_t> prompt{0};
    SampleRequest r;
    r.prompt = prompt;
    CHECK(sample({1, 3}, p, r).token == 1);  // (1 + 4) / 2 < 3
  }
  SECTION("presence and frequency look at generated tokens only") {
    const std::vector<int32_t> prompt{1, 1}, generated{0, 0};
    SampleRequest r;
    r.prompt = prompt;
    r.generated = generated;
    p.presence_penalty = 1;
    CHECK(sample({3, 2.5f}, p, r).token == 1);
    p.presence_penalty = 0;
    p.frequency_penalty = 0.3f;
    CHECK(sample({3, 2.5f}, p, r).token == 1);  // 3 - 2 * 0.3 = 2.4
    CHECK(sample({3, 2.3f}, p, r).token == 0);
    p.frequency_penalty = -1;
    CHECK(sample({2, 3.5f}, p, r).token == 0);
  }
  SECTION("ignore_eos masks every end token") {
    const std::vector<int32_t> ends{0, 2, 99, -1};
    SampleRequest r;
    r.end_tokens = ends;
    CHECK(sample({9, 1, 8}, p, r).token == 0);
    p.ignore_eos = true;
    CHECK(sample({9, 1, 8}, p, r).token == 1);
    p.temperature = 1;
    for (uint32_t i = 0; i < 200; ++i) {
      r.position = i;
      CHECK(sample({9, 1, 8}, p, r).token == 1);
    }
  }
}

TEST_CASE(
    "a draw is the definition's: first token whose cumulative probability exceeds the uniform") {
  struct Case {
    float temperature, top_p, min_p;
    int top_k;
  };
  for (int n : {1, 5, 300, 5000}) {
    const auto row = random_row(n, 7 + n);
    for (const Case& c : {Case{1, 1, 0, 0}, Case{0.7f, 0.9f, 0, 0}, Case{1.5f, 1, 0.02f, 0},
                          Case{1, 1, 0, 40}, Case{2, 0.95f, 0.01f, 50}, Case{1, 0.5f, 0, 100000},
                          Case{0.01f, 1, 0, 0}, Case{30, 0.99f, 0, 0}, Case{1, 1e-6f, 0, 0}}) {
      SamplingParams p;
      p.temperature = c.temperature;
      p.top_p = c.top_p;
      p.min_p = c.min_p;
      p.top_k = c.top_k;
      p.seed = 1234;
      const auto kept = kept_distribution(row, p);
      for (uint32_t position = 0; position < 50; ++position) {
        SampleRequest r;
        r.position = position;
        r.choice = 3;
        const double u = philox_uniform(p.seed, 3, position);
        double below = 0, above = 0;
        const int32_t token = sample(row, p, r).token;
        for (const auto& [id, probability] : kept) {
          below = above;
          above += probability;
          if (id == token) break;
        }
        CAPTURE(n, c.temperature, c.top_p, c.min_p, c.top_k, position, token, u, below, above);
        // The uniform lies in the token's interval, up to the rounding of float logits and sums.
        CHECK(u >= below - 1e-5);
        CHECK(u < above + 1e-5);
      }
    }
  }
}

TEST_CASE("draws follow the distribution") {
  const auto row = random_row(30, 99, 1.0f);
  SamplingParams p;
  p.temperature = 0.8f;
  p.top_k = 20;
  p.top_p = 0.95f;
  const auto kept = kept_distribution(row, p);
  std::map<int32_t, int> counts;
  constexpr int kDraws = 100000;
  for (uint32_t i = 0; i < kDraws; ++i) {
    SampleRequest r;
    r.position = i;
    p.seed = i / 1000;
    ++counts[sample(row, p, r).token];
  }
  double chi2 = 0;
  int n_seen = 0;
  for (const auto& [id, probability] : kept) {
    const double expected = probability * kDraws;
    chi2 += (counts[id] - expected) * (counts[id] - expected) / expected;
    n_seen += counts[id];
  }
  CHECK(n_seen == kDraws);  // nothing outside the kept set
  // chi-squared with k degrees: mean k, variance 2k; five sigma.
  const double degrees = static_cast<double>(kept.size()) - 1;
  CHECK(chi2 < degrees + 5 * std::sqrt(2 * degrees));
}

TEST_CASE("log-probabilities are the model's own: exact, <= 0, finite, independent of sampling") {
  const auto row = random_row(1000, 5);
  SamplingParams p;
  p.temperature = 0.3f;
  p.logit_bias = {{4, 50.0f}};
  SampleRequest r;
  r.n_top_logprobs = 20;
  const SampleResult result = sample(row, p, r);
  const double log_sum = log_sum_exp(row.data(), 1000);
  CHECK(result.token == 4);
  CHECK(result.chosen.token == 4);
  CHECK(result.chosen.logprob == Approx(row[4] - log_sum).epsilon(1e-6));
  REQUIRE(result.top.size() == 20);
  auto sorted = row;
  std::sort(sorted.rbegin(), sorted.rend());
  for (int i = 0; i < 20; ++i) {
    CHECK(result.top[i].logprob == static_cast<float>(sorted[i] - log_sum));
    CHECK(row[result.top[i].token] == sorted[i]);
    CHECK(result.top[i].logprob <= 0);
  }

  SECTION("the whole distribution sums to 1") {
    r.n_top_logprobs = 1000;
    double sum = 0;
    for (const auto& t : sample(row, p, r).top) sum += std::exp(t.logprob);
    CHECK(sum == Approx(1).epsilon(1e-5));
  }
  SECTION("ties are in order of ids; a certain token has exactly 0; -inf has the floor") {
    r.n_top_logprobs = 3;
    p = {};
    p.temperature = 0;
    const auto ties = sample({1, 2, 2, 1, 2}, p, r).top;
    REQUIRE(ties.size() == 3);
    CHECK(ties[0].token == 1);
    CHECK(ties[1].token == 2);
    CHECK(ties[2].token == 4);
    CHECK(sample({0, 1000, 0}, p, r).chosen.logprob == 0.0f);
    r.forced_token = 0;
    CHECK(sample({-kInf, 1, 0}, p, r).chosen.logprob == kLowestLogprob);
    CHECK(sample({-1e30f, 1, 0}, p, r).chosen.logprob == kLowestLogprob);
  }
  SECTION("none and 0") {
    r.n_top_logprobs = 0;
    CHECK(sample(row, p, r).top.empty());
    CHECK(sample(row, p, r).chosen.token == 4);
  }
}

TEST_CASE("a forced token is replayed, with its log-probability") {
  const auto row = random_row(50, 1);
  SamplingParams p;
  p.temperature = 0;
  SampleRequest r;
  r.forced_token = 17;
  r.n_top_logprobs = 2;
  const SampleResult result = sample(row, p, r);
  CHECK(result.token == 17);
  CHECK(result.chosen.logprob == Approx(row[17] - log_sum_exp(row.data(), 50)));
  CHECK(result.top.size() == 2);
  r.forced_token = 50;
  CHECK(sample(row, p, r).token == -1);
}

TEST_CASE("rows that no token can be drawn from answer -1") {
  SampleRequest r;
  r.n_top_logprobs = 2;
  for (float temperature : {0.0f, 1.0f}) {
    SamplingParams p;
    p.temperature = temperature;
    for (float bad : {kNan, -kNan, kInf}) {
      for (int at : {0, 17, 99}) {
        auto row = random_row(100, 3);
        row[at] = bad;
        const SampleResult result = sample(row, p, r);
        CHECK(result.token == -1);
        CHECK(result.top.empty());
      }
    }
    CHECK(sample({-kInf, -kInf}, p, r).token == -1);
    CHECK(sample({-kInf, -3}, p, r).token == 1);
  }
}

TEST_CASE("extreme temperatures neither overflow nor divide by zero") {
  SamplingParams p;
  for (float temperature : {1e-38f, 1e-45f, 1e30f}) {
    p.temperature = temperature;
    for (uint32_t i = 0; i < 20; ++i) {
      SampleRequest r;
      r.position = i;
      const int32_t token = sample({1, 2, 3, 2.9999f}, p, r).token;
      if (temperature < 1) CHECK(token == 2);
      CHECK(token >= 0);
    }
  }
}

TEST_CASE("the scratch of one row leaves no trace in the next") {
  const auto row = random_row(64, 8), small = random_row(8, 9);
  SamplingParams p;
  p.repetition_penalty = 1.3f;
  p.frequency_penalty = 0.5f;
  p.seed = 3;
  const std::vector<int32_t> generated{1, 2, 3, 3, 70};
  for (uint32_t i = 0; i < 30; ++i) {
    SampleRequest r;
    r.position = i;
    r.generated = generated;
    r.prompt = generated;
    SamplerScratch fresh;
    SampleResult expected;
    r.params = &p;
    sample_row(row, r, log_sum_exp, &fresh, &expected);
    CHECK(sample(row, p, r).token == expected.token);
    CHECK(sample(small, p, r).token >= 0);
  }
}

}  // namespace tandem
