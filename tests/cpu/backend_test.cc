// What CpuBackend refuses, reports and draws; that its reference mode computes the definition.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "tests/cpu/tiny_model.h"

namespace tandem {
namespace {

CpuBackendOptions ref_options(int n_threads = 1) {
  CpuBackendOptions options;
  options.kernels = &kernel_table_ref();
  options.n_threads = n_threads;
  return options;
}

}  // namespace

TEST_CASE("a step that does not fit the model or the pools is refused, not computed") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 1);
  auto backend = make_backend(model, ref_options(), 8);
  PageDealer dealer(model.config, 8, 1);
  const TestSequence sequence = dealer.deal(random_tokens(30, model.config.vocab_size, 2), 16);
  const auto refused = [&](auto change) {
    TestSequence copy = sequence;
    StepBatch batch;
    add_item(&batch, &copy, 30);
    change(&batch, &copy);
    const Status status = backend->forward(batch);
    CHECK(status.code() == StatusCode::kInvalidArgument);
    CHECK(!status.message().empty());
  };
  refused([](StepBatch* b, TestSequence*) { b->tokens[3] = -1; });
  refused([](StepBatch* b, TestSequence*) { b->tokens[3] = 101; });
  refused([](StepBatch* b, TestSequence*) { b->items[0].n_tokens = 29; });
  refused([](StepBatch* b, TestSequence*) { b->items[0].first_token = 1; });
  refused([](StepBatch* b, TestSequence*) { b->items[0].first_pos = -1; });
  refused([](StepBatch* b, TestSequence*) { b->items[0].page_tables.pop_back(); });
  refused([](StepBatch*, TestSequence* s) { s->pages[1][0] = -1; });
  refused([](StepBatch*, TestSequence* s) { s->pages[0][1] = 8; });
  refused([](StepBatch* b, TestSequence*) { b->logit_rows[0] = 1; });
  refused([](StepBatch* b, TestSequence*) { b->logit_rows.back() = 30; });
  refused([](StepBatch* b, TestSequence*) { b->clear(); });

  TestSequence good = sequence;
  StepBatch batch;
  add_item(&batch, &good, 30);
  CHECK(backend->forward(batch).ok());
}

TEST_CASE("pools report their size, and a lack of memory as exhausted") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1);
  auto created = create_cpu_backend(model.config, model.weights, ref_options());
  REQUIRE(created.ok());
  Backend& backend = **created;
  // 2 layers x (K and V) x 2 heads x 32 values x 16 tokens x 2 bytes.
  REQUIRE(backend.page_bytes() == std::vector<int64_t>{2 * 2 * 2 * 32 * 16 * 2});
  const Status status = backend.reserve_pages({2000000000});
  CHECK(status.code() == StatusCode::kExhausted);
  CHECK(status.message().find("2000000000 pages") != std::string::npos);
  CHECK(backend.reserve_pages({0}).code() == StatusCode::kInvalidArgument);
  CHECK(backend.reserve_pages({1, 1}).code() == StatusCode::kInvalidArgument);
  CHECK(backend.reserve_pages({4}).ok());
}

TEST_CASE("options out of range are refused by name") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1);
  CpuBackendOptions options = ref_options(0);
  CHECK(create_cpu_backend(model.config, model.weights, options).status().message().find("cpu.threads") !=
        std::string::npos);
  options = ref_options();
  options.page_size = 17;
  CHECK(create_cpu_backend(model.config, model.weights, options).status().message().find("page_size") !=
        std::string::npos);
}

TEST_CASE("a tensor type that the kernels do not serve is named") {
  TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1);
  model.weights.layers[1].w_up.type = GgmlType::kI32;
  const auto created = create_cpu_backend(model.config, model.weights, ref_options());
  CHECK(created.status().code() == StatusCode::kUnimplemented);
  CHECK(created.status().message().find("layer 1 w_up") != std::string::npos);
}

TEST_CASE("C-39: a scale that is no number is found while packing, with tensor and row") {
  TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1);
  WeightView& w = model.weights.layers[1].w_down;
  const int64_t row_bytes = w.n_cols / 32 * 34;
  const uint16_t nan = 0x7e00;
  std::memcpy(const_cast<uint8_t*>(w.data) + 19 * row_bytes + 34, &nan, sizeof nan);
  const auto created = create_cpu_backend(model.config, model.weights, ref_options(2));
  CHECK(created.status().code() == StatusCode::kDataLoss);
  CHECK(created.status().message().find("layer 1 w_down: row 19, block 1 of type Q8_0") == 0);
}

TEST_CASE("packing reports progress from above 0 to 1, and needs the weights no longer") {
  auto model = std::make_unique<TinyModel>(make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 1));
  std::vector<float> progress;
  CpuBackendOptions options = ref_options(2);
  options.pack.on_progress = [&](float p) { progress.push_back(p); };
  auto backend = make_backend(*model, options, 4);
  REQUIRE(progress.size() > 2);
  CHECK(std::is_sorted(progress.begin(), progress.end()));
  CHECK(progress.front() > 0);
  CHECK(progress.back() == 1.0f);
  PageDealer dealer(model->config, 4, 1);
  TestSequence sequence = dealer.deal(random_tokens(20, model->config.vocab_size, 2), 16);
  model.reset();
  StepBatch batch;
  add_item(&batch, &sequence, 20);
  CHECK(backend->forward(batch).ok());
  CHECK(backend->description() == "cpu ref 2 threads");
}

TEST_CASE("sample draws each request from its row, alike with one thread and several") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1);
  std::vector<std::vector<int32_t>> drawn;
  for (int n_threads : {1, 2}) {
    auto backend = make_backend(model, ref_options(n_threads), 4);
    PageDealer dealer(model.config, 4, 1);
    TestSequence sequence = dealer.deal(random_tokens(20, model.config.vocab_size, 2), 16);
    StepBatch batch;
    add_item(&batch, &sequence, 20);
    REQUIRE(backend->forward(batch).ok());
    SamplingParams params;
    params.seed = 77;
    std::vector<SampleRequest> requests(20);
    for (int i = 0; i < 20; ++i) {
      requests[i].logit_row = i;
      requests[i].params = &params;
      requests[i].position = static_cast<uint32_t>(i);
      requests[i].n_top_logprobs = 3;
    }
    std::vector<SampleResult> results(20);
    REQUIRE(backend->sample(requests, results).ok());
    drawn.emplace_back();
    SamplerScratch scratch;
    for (int i = 0; i < 20; ++i) {
      SampleResult expected;
      sample_row(backend->logits(i), requests[i], kernel_table_ref().log_sum_exp, &scratch, &expected);
      CHECK(results[i].token == expected.token);
      CHECK(results[i].chosen.logprob == expected.chosen.logprob);
      CHECK(results[i].top.size() == 3);
      drawn.back().push_back(results[i].token);
    }
  }
  CHECK(drawn[0] == drawn[1]);
}

TEST_CASE("int8 activations stay close to float32 activations") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 3);
  std::vector<std::vector<float>> logits;
  for (bool is_float : {true, false}) {
    CpuBackendOptions options = ref_options();
    options.float_activations = is_float;
    auto backend = make_backend(model, options, 8);
    PageDealer dealer(model.config, 8, 1);
    logits.push_back(run_chunked(backend.get(), dealer.deal(random_tokens(60, 101, 4), 16), 60));
  }
  double error = 0, norm = 0;
  for (size_t i = 0; i < logits[0].size(); ++i) {
    error += std::pow(logits[0][i] - logits[1][i], 2);
    norm += std::pow(logits[0][i], 2);
  }
  CHECK(std::sqrt(error / norm) > 0);
  CHECK(std::sqrt(error / norm) < 0.03);
}

}  // namespace tandem
