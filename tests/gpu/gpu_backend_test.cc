// The device's steps against the processor's, and what the backend promises whatever the model.
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/gpu/gpu_models.h"

namespace tandem {
namespace {

constexpr int kPages = 64;

}  // namespace

TEST_CASE("logits of the device are the processor's, for both kinds of model") {
  // Those that floats can be made into, in rows as short as these models'; products of every type: device_kernels.
  const auto types = {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ8_0};
  for (TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    for (GgmlType type : types) {
      const TinyModel model = make_tiny_model(kind, type, 11);
      auto gpu = make_gpu_backend(model, test_gpu_options(), kPages);
      auto cpu = make_cpu_backend(model, KvType::kF16, kPages);
      PageDealer dealer(model.config, kPages, 3);
      const TestSequence sequence = dealer.deal(random_tokens(70, model.config.vocab_size, 5), 16);
      const std::vector<float> expected = run_chunked(cpu.get(), sequence, 70);
      const std::vector<float> got = run_chunked(gpu.get(), sequence, 70);
      const double worst = worst_difference(got, expected);
      INFO(quant_traits(static_cast<uint32_t>(type))->name << (kind == TinyKind::kPlain ? " plain" : " varied") << ", worst difference over rms: " << worst);
      CHECK(worst < 0.02);
      // Token by token, through graphs: the same bits as in one piece.
      const std::vector<float> single = run_chunked(gpu.get(), sequence, 1);
      CHECK(std::memcmp(single.data(), got.data(), got.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("text of the device is the processor's up to the first near-tie, drawn on the device and running ahead") {
  for (KvType kv : {KvType::kF16, KvType::kQ8_0}) {
    const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ4_0, 7);
    PageDealer dealer(model.config, kPages, 9);
    TestSequence sequence = dealer.deal(random_tokens(200, model.config.vocab_size, 4), 16);
    sequence.tokens.resize(20);
    auto cpu = make_cpu_backend(model, kv, kPages);
    std::vector<float> margins;
    const std::vector<int32_t> expected = decode_greedily(cpu.get(), sequence, 60, &margins);
    for (bool runs_ahead : {false, true}) {
      GpuOptions options = test_gpu_options();
      options.kv_type = kv;
      options.runs_ahead = runs_ahead;
      auto gpu = make_gpu_backend(model, options, kPages);
      const std::vector<int32_t> got = decode_greedily(gpu.get(), sequence, 60, nullptr);
      for (size_t i = 0; i < got.size(); ++i) {
        if (margins[i] < 0.05f) break;
        INFO("token " << i << ", margin " << margins[i]);
        REQUIRE(got[i] == expected[i]);
      }
    }
  }
}

TEST_CASE("which path was measured quicker changes no bit") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ4_0, 3);
  PageDealer dealer(model.config, kPages, 3);
  const TestSequence sequence = dealer.deal(random_tokens(70, model.config.vocab_size, 5), 16);
  GpuOptions options = test_gpu_options();
  auto fixed = make_gpu_backend(model, options, kPages);
  options.measures_paths = true;
  auto measured = make_gpu_backend(model, options, kPages);
  const std::vector<float> expected = run_chunked(fixed.get(), sequence, 70), got = run_chunked(measured.get(), sequence, 70);
  CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
}

TEST_CASE("a step that does not fit the model or the pools is refused, not computed") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 1);
  auto backend = make_gpu_backend(model, test_gpu_options(), 8);
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
  refused([](StepBatch* b, TestSequence*) { b->items[0].n_tokens = 29; });
  refused([](StepBatch* b, TestSequence*) { b->items[0].first_pos = -1; });
  refused([](StepBatch* b, TestSequence*) { b->items[0].first_pos = 590; });
  refused([](StepBatch* b, TestSequence*) { b->items[0].page_tables.pop_back(); });
  refused([](StepBatch*, TestSequence* s) { s->pages[1][0] = -1; });
  refused([](StepBatch*, TestSequence* s) { s->pages[0][1] = 8; });
  refused([](StepBatch* b, TestSequence*) { b->logit_rows[0] = 1; });
  refused([](StepBatch* b, TestSequence*) { b->clear(); });
}

TEST_CASE("a model that the budget does not hold is refused with the arithmetic, before anything is taken") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1);
  GpuOptions options = test_gpu_options();
  options.memory_budget_bytes = 100'000;
  const auto planned = plan_gpu_memory(model.config, model.weights, test_gpu(), options);
  REQUIRE(planned.status().code() == StatusCode::kExhausted);
  CHECK(planned.status().message().find("weights") != std::string::npos);
  CHECK(planned.status().message().find("gpu.memory_budget_bytes") != std::string::npos);
  options.memory_budget_bytes = 0;
  const auto fits = plan_gpu_memory(model.config, model.weights, test_gpu(), options);
  REQUIRE(fits.ok());
  CHECK(fits->weights_bytes > 0);
  CHECK(fits->workspace_bytes > 0);
  CHECK(fits->kv_bytes() > 0);
}

}  // namespace tandem
