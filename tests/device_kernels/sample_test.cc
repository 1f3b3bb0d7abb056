// Sampling on the device: the token that model/sampler.cc draws from the same logits, for every parameter, unless two sums lie
// within rounding of each other; log-probabilities within rounding.
#include "tests/device_kernels/device_fixture.h"

#include <cmath>
#include <random>

#include "kernels/device_sample.cuh"
#include "model/sampler.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

constexpr int kVocab = 3001;

struct Row {
  std::string what;
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> prompt = {5, 6, 6, 4000}, generated = {7, 7, 8};
  std::vector<int32_t> end_tokens = {2, 9};
  uint32_t choice = 0;
  int n_top = -1, forced = -1;
};

std::vector<SampleResult> on_cpu(const std::vector<Row>& rows) {
  std::vector<SampleResult> out(rows.size());
  SamplerScratch scratch;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    SampleRequest q;
    q.params = &r.params;
    q.choice = r.choice;
    q.position = static_cast<uint32_t>(r.prompt.size() + r.generated.size());
    q.prompt = r.prompt;
    q.generated = r.generated;
    q.end_tokens = r.end_tokens;
    q.n_top_logprobs = r.n_top;
    q.forced_token = r.forced;
    sample_row(r.logits, q, kernel_table_ref().log_sum_exp, &scratch, &out[i]);
  }
  return out;
}

struct Drawn {
  std::vector<DeviceSampleResult> results;
  std::vector<int32_t> next, positions;
  std::vector<std::vector<int32_t>> histories;
};

Drawn on_device(const std::vector<Row>& rows, uint64_t order, bool advance = false) {
  DeviceRun run(order);
  const size_t M = rows.size();
  std::vector<float> logits;
  std::vector<DeviceSampleRow> params(M);
  std::vector<DeviceArray<int32_t>> ints;
  std::vector<DeviceArray<float>> floats;
  std::vector<int32_t> positions;
  std::vector<size_t> history_of;
  for (size_t i = 0; i < M; ++i) {
    const Row& r = rows[i];
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
    logits.insert(logits.end(), 3, NAN);  // past the row
    DeviceSampleRow& p = params[i];
    p.seed = r.params.seed;
    p.choice = r.choice;
    p.temperature = r.params.temperature;
    p.top_p = r.params.top_p;
    p.min_p = r.params.min_p;
    p.top_k = r.params.top_k;
    p.repetition_penalty = r.params.repetition_penalty;
    p.presence_penalty = r.params.presence_penalty;
    p.frequency_penalty = r.params.frequency_penalty;
    p.n_prompt = static_cast<int32_t>(r.prompt.size());
    p.n_top_logprobs = r.n_top;
    p.forced_token = r.forced;
    std::vector<int32_t> history = r.prompt, tokens;
    history.insert(history.end(), r.generated.begin(), r.generated.end());
    positions.push_back(static_cast<int32_t>(history.size()) - 1);
    history.resize(history.size() + 4, -7);
    history_of.push_back(ints.size());
    ints.emplace_back(history);
    p.history = ints.back().get();
    p.history_capacity = static_cast<int32_t>(history.size());
    if (!r.params.logit_bias.empty()) {
      std::vector<float> values;
      for (const auto& [t, b] : r.params.logit_bias) tokens.push_back(t), values.push_back(b);
      ints.emplace_back(tokens);
      floats.emplace_back(values);
      p.bias_tokens = ints.back().get();
      p.bias_values = floats.back().get();
      p.n_bias = static_cast<int32_t>(tokens.size());
    }
    if (r.params.ignore_eos) {
      ints.emplace_back(r.end_tokens);
      p.masked_tokens = ints.back().get();
      p.n_masked = static_cast<int32_t>(r.end_tokens.size());
    }
  }
  const DeviceArray<float> device_logits(logits), adjusted(M * kVocab);
  const DeviceArray<DeviceSampleRow> device_rows(params);
  const DeviceArray<int32_t> device_positions(positions), next(M, 0x55);
  const DeviceArray<DeviceSampleResult> results(M);
  const DeviceArray<uint32_t> counts(M * kVocab);
  SampleParams p;
  p.logits = device_logits.get();
  p.logits_stride = kVocab + 3;
  p.vocab_size = kVocab;
  p.n_rows = static_cast<int>(M);
  p.rows = device_rows.get();
  p.positions = device_positions.get();
  p.advance = advance;
  p.next_tokens = next.get();
  p.results = results.get();
  p.adjusted = adjusted.get();
  p.counts = counts.get();
  run.finish(launch_sample(p, nullptr));
  for (uint32_t c : counts.read()) REQUIRE(c == 0);
  Drawn d{results.read(), next.read(), device_positions.read(), {}};
  for (size_t i : history_of) d.histories.push_back(ints[i].read());
  return d;
}

std::vector<float> some_logits(uint32_t seed, float sigma = 3.0f) { return random_floats(kVocab, sigma, seed); }

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  const auto add = [&](const char* what, auto change) {
    for (uint32_t i = 0; i < 3; ++i) {
      Row r;
      r.what = what;
      r.logits = some_logits(50 + i);
      r.params.seed = 1000 + i;
      r.choice = i;
      change(&r);
      rows.push_back(r);
    }
  };
  add("greedy", [](Row* r) { r->params.temperature = 0; });
  add("greedy, a tie", [](Row* r) { r->params.temperature = 0, r->logits[2000] = r->logits[17] = 50.0f; });
  add("plain", [](Row*) {});
  add("cool", [](Row* r) { r->params.temperature = 0.3f; });
  add("hot: draws from the tail", [](Row* r) { r->params.temperature = 40.0f; });
  add("all alike", [](Row* r) { r->logits.assign(kVocab, 1.5f); });
  add("top_k", [](Row* r) { r->params.top_k = 40; });
  add("top_k past a band", [](Row* r) { r->params.top_k = 2500, r->params.temperature = 10.0f; });
  add("min_p", [](Row* r) { r->params.min_p = 0.1f; });
  add("top_p", [](Row* r) { r->params.top_p = 0.7f; });
  add("top_p, hot", [](Row* r) { r->params.top_p = 0.95f, r->params.temperature = 30.0f; });
  add("all of them", [](Row* r) { r->params.top_k = 100, r->params.min_p = 0.01f, r->params.top_p = 0.9f, r->params.temperature = 0.8f; });
  add("repetition", [](Row* r) { r->params.repetition_penalty = 1.3f, r->logits[6] = 30.0f, r->logits[7] = 29.0f, r->params.temperature = 0; });
  add("presence and frequency", [](Row* r) {
    r->params.presence_penalty = 0.5f, r->params.frequency_penalty = 1.5f, r->logits[7] = 20.0f, r->logits[6] = 17.0f, r->params.temperature = 0;
  });
  add("bias, twice for one", [](Row* r) { r->params.logit_bias = {{11, 40.0f}, {12, 44.0f}, {11, 5.0f}, {-1, 9.0f}, {kVocab, 9.0f}}; });
  add("end tokens masked", [](Row* r) { r->params.ignore_eos = true, r->logits[2] = r->logits[9] = 90.0f; });
  add("log-probabilities", [](Row* r) { r->n_top = 20, r->params.temperature = 0.5f; });
  add("only the chosen one's", [](Row* r) { r->n_top = 0; });
  add("replay", [](Row* r) { r->forced = 123, r->n_top = 3; });
  add("nearly all masked", [](Row* r) {
    for (int i = 0; i < kVocab; ++i) r->logits[i] = i % 1500 == 3 ? r->logits[i] : -INFINITY;
    r->n_top = 5;
  });
  add("wide apart", [](Row* r) {
    for (int i = 0; i < kVocab; ++i) r->logits[i] *= 1e6f;
    r->params.top_k = 3, r->n_top = 4;
  });
  add("NaN", [](Row* r) { r->logits[2999] = NAN; });
  add("infinity", [](Row* r) { r->logits[0] = INFINITY; });
  add("nothing left", [](Row* r) { r->logits.assign(kVocab, -INFINITY); });
  return rows;
}

}  // namespace

TEST_CASE("the device draws the CPU's tokens") {
  const std::vector<Row> rows = all_rows();
  const std::vector<SampleResult> want = on_cpu(rows);
  for (uint64_t order : {1, 2}) {
    const Drawn got = on_device(rows, order);
    for (size_t i = 0; i < rows.size(); ++i) {
      INFO(rows[i].what << ", row " << i);
      const DeviceSampleResult& r = got.results[i];
      CHECK(r.token == want[i].token);
      CHECK(got.next[i] == r.token);
      const size_t n_known = rows[i].prompt.size() + rows[i].generated.size();
      CHECK(got.histories[i][n_known] == (r.token >= 0 ? r.token : -7));
      CHECK(got.positions[i] == static_cast<int>(n_known) - 1);
      if (rows[i].n_top < 0 || r.token < 0) continue;
      CHECK(std::abs(r.logprob - want[i].chosen.logprob) <= 1e-6f * (1 + std::abs(r.logprob)));
      REQUIRE(r.n_top == static_cast<int>(want[i].top.size()));
      for (int j = 0; j < r.n_top; ++j) {
        CHECK(r.top_tokens[j] == want[i].top[static_cast<size_t>(j)].token);
        CHECK(std::abs(r.top_logprobs[j] - want[i].top[static_cast<size_t>(j)].logprob) <= 1e-6f * (1 + std::abs(r.top_logprobs[j])));
      }
    }
  }
}

TEST_CASE("a row's draw does not depend on its neighbours") {
  const std::vector<Row> rows = all_rows();
  const Drawn whole = on_device(rows, 3);
  for (size_t i = 0; i < rows.size(); i += 7) {
    const Drawn one = on_device({rows[i]}, 4, true);
    CHECK(one.results[0].token == whole.results[i].token);
    CHECK(one.results[0].logprob == whole.results[i].logprob);
    CHECK(one.positions[0] == whole.positions[i] + 1);
  }
}

TEST_CASE("draws follow the distribution") {
  // 96 draws from two tokens of equal weight: binomial, five deviations.
  std::vector<Row> rows(96);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits.assign(kVocab, -INFINITY);
    rows[i].logits[100] = rows[i].logits[200] = 1.0f;
    rows[i].params.seed = i * 7919;
  }
  int n = 0;
  for (const DeviceSampleResult& r : on_device(rows, 1).results) {
    CHECK((r.token == 100 || r.token == 200));
    n += r.token == 100;
  }
  CHECK(std::abs(n - 48) < 25);
}
