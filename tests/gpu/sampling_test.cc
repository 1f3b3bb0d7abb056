// Penalties and biases of rows that draw on the device: the host's sampler draws the same from the same logits.
#include <catch2/catch.hpp>

#include "kernels/kernel_table.h"
#include "simt.h"
#include "tests/gpu/gpu_models.h"

namespace tandem {
namespace {

constexpr int kPages = 40;

// A sequence that draws with its own parameters.
struct Drawer {
  TestSequence sequence;
  SamplingParams params;
  size_t n_prompt;
  std::vector<int32_t> generated;
  Drawer(TestSequence s, SamplingParams p) : sequence(std::move(s)), params(std::move(p)), n_prompt(sequence.tokens.size()) {}
  int n_tokens() const { return static_cast<int>(n_prompt + generated.size()); }
  SampleRequest request(int row, uint32_t choice) const {
    SampleRequest r;
    r.logit_row = row;
    r.params = &params;
    r.choice = choice;
    r.position = static_cast<uint32_t>(n_tokens());
    r.prompt = std::span(sequence.tokens).first(n_prompt);
    r.generated = generated;
    r.n_top_logprobs = 2;
    return r;
  }
};

SamplingParams params(float temperature, float repetition, float presence, float frequency) {
  SamplingParams p;
  p.temperature = temperature, p.repetition_penalty = repetition, p.presence_penalty = presence, p.frequency_penalty = frequency;
  p.seed = 77;
  return p;
}

// The K/V of all but the last token of the prompt.
void prefill(Backend* backend, const Drawer& d) {
  StepBatch batch;
  StepItem item;
  item.n_tokens = static_cast<int>(d.n_prompt) - 1;
  for (const auto& table : d.sequence.pages) item.page_tables.push_back(table.data());
  batch.items.push_back(item);
  batch.tokens.assign(d.sequence.tokens.begin(), d.sequence.tokens.begin() + item.n_tokens);
  REQUIRE(backend->forward(batch).message() == "");
}

// One step of all of them. Returns the bytes that came to the host with the draw.
int64_t step(Backend* backend, const std::vector<Drawer*>& rows) {
  StepBatch batch;
  for (Drawer* d : rows) {
    StepItem item;
    item.first_pos = d->n_tokens() - 1, item.n_tokens = 1, item.first_token = static_cast<int>(batch.tokens.size());
    for (const auto& table : d->sequence.pages) item.page_tables.push_back(table.data());
    batch.items.push_back(item);
    batch.logit_rows.push_back(item.first_token);
    batch.tokens.push_back(d->generated.empty() ? d->sequence.tokens.back() : d->generated.back());
  }
  REQUIRE(backend->forward(batch).message() == "");
  std::vector<SampleRequest> requests;
  for (size_t i = 0; i < rows.size(); ++i) requests.push_back(rows[i]->request(static_cast<int>(i), static_cast<uint32_t>(i)));
  std::vector<SampleResult> expected(rows.size()), got(rows.size());
  SamplerScratch scratch;
  for (size_t i = 0; i < rows.size(); ++i) sample_row(backend->logits(static_cast<int>(i)), requests[i], kernel_table_ref().log_sum_exp, &scratch, &expected[i]);
  const int64_t before = simt::counters().d2h_bytes;
  REQUIRE(backend->sample(requests, got).message() == "");
  for (size_t i = 0; i < rows.size(); ++i) {
    INFO("row " << i << " at " << rows[i]->n_tokens());
    REQUIRE(got[i].token == expected[i].token);
    CHECK(got[i].chosen.logprob == Approx(expected[i].chosen.logprob).margin(1e-4));
    rows[i]->generated.push_back(got[i].token);
  }
  return simt::counters().d2h_bytes - before;
}

}  // namespace

TEST_CASE("rows with penalties and biases draw on the device what the host would, whoever had the row before") {
  simt::reset();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  GpuOptions options = test_gpu_options();
  auto backend = make_gpu_backend(model, options, kPages);
  PageDealer dealer(model.config, kPages, 9);
  const auto long_deal = [&](uint32_t seed) {
    TestSequence s = dealer.deal(random_tokens(60, model.config.vocab_size, seed), 16);
    s.tokens.resize(20);
    return s;
  };
  SamplingParams biased = params(0.0f, 1.0f, 0.0f, 0.0f);
  for (int32_t t = 0; t < 12; ++t) biased.logit_bias.emplace_back(7 * t % 101, static_cast<float>(t) - 5.0f);
  biased.logit_bias.emplace_back(7, 2.5f);     // a second time
  biased.logit_bias.emplace_back(5000, 1.0f);  // no such token
  Drawer greedy(long_deal(1), params(0.0f, 1.3f, 0.0f, 0.0f)), drawn(long_deal(2), params(1.0f, 1.0f, 0.7f, 0.4f)),
      plain(long_deal(3), params(0.0f, 1.0f, 0.0f, 0.0f)), bias(long_deal(4), biased);
  for (const Drawer* d : {&greedy, &drawn, &plain, &bias}) prefill(backend.get(), *d);
  const int64_t most = 4 * 200;  // ids and log-probabilities; a row of logits has 404 bytes
  std::vector<Drawer*> rows = {&greedy, &drawn, &plain, &bias};
  for (int i = 0; i < 6; ++i) CHECK(step(backend.get(), rows) <= most);
  rows = {&bias, &greedy, &drawn};  // others' rows, whose history is another
  for (int i = 0; i < 6; ++i) CHECK(step(backend.get(), rows) <= most);
  rows = {&greedy, &plain, &bias, &drawn};
  for (int i = 0; i < 3; ++i) CHECK(step(backend.get(), rows) <= most);
  // Once there, only what is drawn is added, by the draw itself.
  const int64_t sent = simt::counters().h2d_bytes;
  CHECK(step(backend.get(), rows) <= most);
  CHECK(simt::counters().h2d_bytes - sent < 4 * 256);
  for (const simt::Report& r : simt::reports()) {
    INFO(simt::fault_name(r.fault) << ": " << r.text);
    CHECK(false);
  }
  simt::reset();
}

TEST_CASE("more biases than the device has room for are the host's to draw") {
  simt::reset();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  auto backend = make_gpu_backend(model, test_gpu_options(), kPages);
  PageDealer dealer(model.config, kPages, 9);
  TestSequence s = dealer.deal(random_tokens(60, model.config.vocab_size, 1), 16);
  s.tokens.resize(20);
  SamplingParams many = params(0.0f, 1.0f, 0.0f, 0.0f);
  for (int32_t t = 0; t < 129; ++t) many.logit_bias.emplace_back(t, static_cast<float>(t % 11));
  Drawer d(std::move(s), many);
  prefill(backend.get(), d);
  for (int i = 0; i < 3; ++i) (void)step(backend.get(), {&d});
  simt::reset();
}

}  // namespace tandem
