// A model of which the first layers are the processor's and the others the device's.
#include <catch2/catch.hpp>
#include <cstring>

#include "tests/gpu/gpu_models.h"
#include "worker/device_split.h"
#include "worker/split_backend.h"

namespace tandem {
namespace {

constexpr int kPages = 64;

// The model with its last layer `n` times more.
TinyModel deepen(TinyModel model, int n) {
  ModelConfig& c = model.config;
  for (int i = 0; i < n; ++i) {
    c.kv_groups[static_cast<size_t>(c.layers.back().kv_group)].layers.push_back(c.n_layers++);
    c.layers.push_back(c.layers.back());
    model.weights.layers.push_back(model.weights.layers.back());
  }
  return model;
}

std::unique_ptr<Backend> make_split(const TinyModel& model, int first_layer, KvType kv_type, int n_pages, bool has_lean_set = true) {
  CpuBackendOptions front;
  for (const KernelTable* column : runnable_columns()) {  // as make_cpu_backend()
    if (std::string(column->isa) != "avx512bf16") front.kernels = column;
  }
  front.kv_type = kv_type;
  front.n_layers = first_layer;
  front.pack.has_lean_set = has_lean_set;
  GpuOptions back = test_gpu_options();
  back.has_lean_set = has_lean_set;
  back.kv_type = kv_type;
  back.first_layer = first_layer;
  auto cpu = create_cpu_backend(model.config, model.weights, front);
  auto gpu = create_gpu_backend(model.config, model.weights, test_gpu(), back);
  INFO(cpu.status().message() << gpu.status().message());
  REQUIRE((cpu.ok() && gpu.ok()));
  auto split = create_split_backend(model.config, std::move(*cpu), std::move(*gpu));
  const Status reserved = split->reserve_pages(std::vector<int>(model.config.kv_groups.size(), n_pages));
  INFO(reserved.message());
  REQUIRE(reserved.ok());
  return split;
}

}  // namespace

TEST_CASE("wherever a model is cut its logits are the processor's, and the same bits in chunks and token by token") {
  struct Case {
    TinyKind kind;
    int more, first_layer;
  };
  // kVaried: each side has a KV group that the other has no layer of.
  for (const Case& c : {Case{TinyKind::kPlain, 2, 1}, {TinyKind::kPlain, 2, 3}, {TinyKind::kVaried, 0, 1}, {TinyKind::kVaried, 1, 2}}) {
    for (KvType kv : {KvType::kF16, KvType::kQ8_0}) {
      const TinyModel model = deepen(make_tiny_model(c.kind, GgmlType::kQ8_0, 11), c.more);
      auto cpu = make_cpu_backend(model, kv, kPages);
      auto split = make_split(model, c.first_layer, kv, kPages);
      CHECK(split->page_bytes() == cpu->page_bytes());
      PageDealer dealer(model.config, kPages, 3);
      const TestSequence sequence = dealer.deal(random_tokens(70, model.config.vocab_size, 5), 16);
      const std::vector<float> expected = run_chunked(cpu.get(), sequence, 70), got = run_chunked(split.get(), sequence, 70);
      const double worst = worst_difference(got, expected);
      INFO("cut at " << c.first_layer << " of " << model.config.n_layers << ", worst difference over rms: " << worst);
      CHECK(worst < 0.02);
      CHECK(same_bits(run_chunked(split.get(), sequence, 1), got));
      CHECK(same_bits(run_chunked(split.get(), sequence, 9), got));
    }
  }
}

TEST_CASE("either set is the processor's wherever the cut is, also where one side has nothing of 8 bits") {
  const TinyModel whole = deepen(make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 11), 2);
  const TinyModel other = make_tiny_model(TinyKind::kVaried, GgmlType::kQ4_0, 12);
  TinyModel mixed = deepen(make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 11), 2);
  mixed.weights.layers[3] = other.weights.layers[1];  // the device's, with the output
  mixed.weights.output = other.weights.output;
  REQUIRE(is_mostly_q8_0(mixed.weights));
  for (const auto& [model, first_layer] : {std::pair{&whole, 1}, {&whole, 3}, {&mixed, 3}}) {
    CAPTURE(model == &mixed, first_layer);
    auto cpu = make_cpu_backend(*model, KvType::kF16, kPages);
    auto split = make_split(*model, first_layer, KvType::kF16, kPages);
    CHECK(split->weight_bytes().full == cpu->weight_bytes().full);
    CHECK(split->weight_bytes().lean == cpu->weight_bytes().lean);
    PageDealer dealer(model->config, kPages, 3);
    const TestSequence sequence = dealer.deal(random_tokens(70, model->config.vocab_size, 5), 16);
    const std::vector<float> full = run_chunked(split.get(), sequence, 70);
    for (const int n_full : {0, 33}) {
      const std::vector<float> expected = run_chunked(cpu.get(), sequence, 70, n_full), got = run_chunked(split.get(), sequence, 70, n_full);
      const double worst = worst_difference(got, expected);
      INFO("lean from " << n_full << ", worst difference over rms: " << worst);
      CHECK(worst < 0.02);
      CHECK_FALSE(same_bits(got, full));
      CHECK(same_bits(run_chunked(split.get(), sequence, 1, n_full), got));
    }
  }
}

TEST_CASE("of a cut model without a lean set a lean step is refused") {
  const TinyModel model = deepen(make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 11), 1);
  auto split = make_split(model, 1, KvType::kF16, kPages, false);
  check_lean_step_is_refused(split.get(), kPages);
}

TEST_CASE("text of a model that is cut is the processor's up to the first near-tie") {
  const TinyModel model = deepen(make_tiny_model(TinyKind::kPlain, GgmlType::kQ4_0, 7), 2);
  PageDealer dealer(model.config, kPages, 9);
  TestSequence sequence = dealer.deal(random_tokens(120, model.config.vocab_size, 4), 16);
  sequence.tokens.resize(20);
  auto cpu = make_cpu_backend(model, KvType::kF16, kPages);
  std::vector<float> margins;
  const std::vector<int32_t> expected = decode_greedily(cpu.get(), sequence, 40, &margins);
  auto split = make_split(model, 2, KvType::kF16, kPages);
  const std::vector<int32_t> got = decode_greedily(split.get(), sequence, 40, nullptr);
  size_t n_same = 0;
  while (n_same < got.size() && margins[n_same] >= 0.05f) {
    INFO("token " << n_same << ", margin " << margins[n_same]);
    REQUIRE(got[n_same] == expected[n_same]);
    ++n_same;
  }
  CHECK(n_same >= 5);
}

TEST_CASE("a page is imported and copied on both sides of the cut") {
  for (TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    const TinyModel model = deepen(make_tiny_model(kind, GgmlType::kQ8_0, 2), 1);
    // What a prefill worker lends: the processor's pages, in memory that is ours.
    CpuBackendOptions options;
    options.kernels = runnable_columns().back();
    auto lender = create_cpu_backend(model.config, model.weights, options);
    REQUIRE(lender.ok());
    const std::vector<int64_t> bytes = (*lender)->page_bytes();
    std::vector<std::unique_ptr<uint8_t, decltype(&std::free)>> memory;
    std::vector<uint8_t*> places;
    for (int64_t b : bytes) {
      memory.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(b * kPages))), std::free);
      places.push_back(memory.back().get());
    }
    REQUIRE((*lender)->place_pages(std::vector<int>(bytes.size(), kPages), places).ok());
    PageDealer dealer(model.config, kPages, 3);
    TestSequence prompt = dealer.deal(random_tokens(41, model.config.vocab_size, 5), 16);
    const std::vector<float> whole = run_chunked(lender->get(), prompt, 41);
    const std::vector<float> expected(whole.end() - model.config.vocab_size, whole.end());

    auto split = make_split(model, 1, KvType::kF16, 2 * kPages);
    const auto last_logits = [&](const TestSequence& s) {
      StepBatch batch;
      StepItem item;
      item.first_pos = 40, item.n_tokens = 1;
      for (const auto& table : s.pages) item.page_tables.push_back(table.data());
      batch.items.push_back(item);
      batch.tokens.push_back(s.tokens[40]);
      batch.logit_rows.push_back(0);
      return run_step(split.get(), batch);
    };
    std::vector<PageCopy> copies;
    for (size_t g = 0; g < prompt.pages.size(); ++g) {
      for (PageId page : prompt.pages[g]) {
        const Status imported = split->import_page(static_cast<int>(g), page, [&](uint8_t* to) {
          std::memcpy(to, places[g] + page * bytes[g], static_cast<size_t>(bytes[g]));
          return ok_status();
        });
        INFO(imported.message());
        REQUIRE(imported.ok());
        copies.push_back({static_cast<int>(g), page, page + kPages});
      }
    }
    const std::vector<float> got = last_logits(prompt);
    const double worst = worst_difference(got, expected);
    INFO("worst difference over rms: " << worst);
    CHECK(worst < 0.02);
    REQUIRE(split->copy_pages(copies).ok());
    for (auto& table : prompt.pages) {
      for (PageId& page : table) page += kPages;
    }
    CHECK(same_bits(last_logits(prompt), got));
    // Nothing is there that was not brought there.
    CHECK(!split->import_page(0, 2 * kPages, [](uint8_t*) { return ok_status(); }).ok());
    CHECK(!split->import_page(9, 0, [](uint8_t*) { return ok_status(); }).ok());
    CHECK(split->import_page(0, 0, [](uint8_t*) { return data_loss("torn"); }).message() == "torn");
  }
}

TEST_CASE("as many of the last layers as fit beside the K/V go to the device, and what they are is said") {
  const TinyModel model = deepen(make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1), 6);  // 8 layers
  GpuOptions options = test_gpu_options();
  const GpuFacts gpu = test_gpu();
  DeviceSplitInput in{model.config, model.weights, gpu, options};
  in.least_tokens = 512;
  const auto all = choose_device_layers(in);
  REQUIRE(all.status().message() == "");
  CHECK(all->first_layer == 0);
  CHECK(all->why.empty());
  // 32 pages of 16 tokens and one to grow into.
  const auto needed = [](const GpuMemory& m) { return m.weights_bytes + m.workspace_bytes + 33 * m.page_bytes[0]; };
  options.memory_budget_bytes = needed(all->memory);
  CHECK(choose_device_layers(in)->first_layer == 0);
  int expected = 1;
  for (options.memory_budget_bytes -= 1; expected < 8; ++expected) {
    const auto split = choose_device_layers(in);
    REQUIRE(split.status().message() == "");
    CHECK(split->first_layer == expected);
    CHECK(split->why.find(std::to_string(8 - expected + 1) + " of 8 layers") != std::string::npos);
    CHECK(needed(split->memory) <= options.memory_budget_bytes);
    options.memory_budget_bytes = needed(split->memory) - 1;  // and not one byte less
  }
  const auto none = choose_device_layers(in);
  CHECK(none.status().code() == StatusCode::kExhausted);
  CHECK(none.status().message().find("not even one of 8 layers") != std::string::npos);

  // A pool that is asked for needs its room: half of it for half of the layers.
  options.memory_budget_bytes = needed(all->memory);
  in.kv_pool_bytes = 66 * all->memory.page_bytes[0];
  const auto more_kv = choose_device_layers(in);
  REQUIRE(more_kv.status().message() == "");
  CHECK(more_kv->first_layer > 0);
  CHECK(more_kv->memory.kv_bytes() >= in.kv_pool_bytes * (8 - more_kv->first_layer) / 8);

  // So many as are asked for, or none.
  in.kv_pool_bytes = 0;
  in.n_layers = 3;
  CHECK(choose_device_layers(in)->first_layer == 5);
  in.n_layers = 100;
  CHECK(choose_device_layers(in)->first_layer == 0);
  options.memory_budget_bytes = 100'000;
  CHECK(choose_device_layers(in).status().code() == StatusCode::kExhausted);
}

TEST_CASE("workers of one card that may take more than it has are refused with the sum") {
  GpuFacts card;
  card.name = "a card";
  card.total_bytes = int64_t{6000} << 20;
  CHECK(check_card(1, int64_t{1} << 40, card).ok());
  CHECK(check_card(2, int64_t{3000} << 20, card).ok());
  CHECK(check_card(3, int64_t{2000} << 20, card).ok());
  const Status refused = check_card(2, (int64_t{3000} << 20) + 1, card);
  CHECK(refused.code() == StatusCode::kExhausted);
  for (const char* part : {"2 workers of 3000.0 MiB each", "= 6000.0 MiB", "6000.0 MiB of a card", "at most 3145728000", "gpu.memory_budget_bytes"}) {
    INFO(refused.message());
    CHECK(refused.message().find(part) != std::string::npos);
  }
  CHECK(check_card(16, INT64_MAX / 32, card).code() == StatusCode::kExhausted);
}

TEST_CASE("steps without the activations of the layer before are refused by later layers, and with them by first ones") {
  const TinyModel model = deepen(make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1), 2);
  GpuOptions options = test_gpu_options();
  for (int first_layer : {0, 2}) {
    options.first_layer = first_layer;
    auto gpu = make_gpu_backend(model, options, kPages);
    PageDealer dealer(model.config, kPages, 1);
    TestSequence sequence = dealer.deal(random_tokens(3, model.config.vocab_size, 2), 16);
    StepBatch batch;
    add_item(&batch, &sequence, 3);
    const std::vector<float> hidden(3 * static_cast<size_t>(model.config.hidden_dim), 0.5f);
    if (first_layer == 0) batch.hidden = hidden.data();
    CHECK(gpu->forward(batch).code() == StatusCode::kInvalidArgument);
    batch.hidden = first_layer == 0 ? nullptr : hidden.data();
    CHECK(gpu->forward(batch).message() == "");
  }
  options.first_layer = 4;
  CHECK(!create_gpu_backend(model.config, model.weights, test_gpu(), options).ok());
}

}  // namespace tandem
