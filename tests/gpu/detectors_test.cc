// The runtime under the stand-in's detectors: nothing is reported in any order of threads, blocks and streams; imports
// beside running steps; what crosses the bus; bytes read from device memory a token.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "cuda_runtime.h"
#include "simt.h"
#include "tests/gpu/gpu_models.h"
#include "tests/gpu/no_reports.h"

namespace tandem {
namespace {

constexpr int kPages = 40;

// A prompt in one chunk, then tokens drawn on the device.
std::vector<int32_t> decode(Backend* backend, const TinyModel& model, int n, uint32_t seed) {
  PageDealer dealer(model.config, kPages, seed);
  TestSequence sequence = dealer.deal(random_tokens(100, model.config.vocab_size, seed), 16);
  sequence.tokens.resize(18);
  return decode_greedily(backend, sequence, n, nullptr);
}

}  // namespace

TEST_CASE("whole steps are sound in every order, drawn ahead or not, work done at once or late") {
  REQUIRE(simt::is_instrumented());
  for (TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    const TinyModel model = make_tiny_model(kind, GgmlType::kQ8_0, 5);
    std::vector<int32_t> first;
    for (uint64_t seed : {1, 2, 3}) {
      simt::reset();
      simt::options().order_seed = seed;
      simt::options().runs_late = seed != 2;
      GpuOptions options = test_gpu_options();
      options.runs_ahead = seed != 3;
      auto backend = make_gpu_backend(model, options, kPages);
      const std::vector<int32_t> text = decode(backend.get(), model, 30, 2);
      if (first.empty()) first = text;
      CHECK(text == first);
      check_no_reports();
    }
  }
  simt::reset();
}

TEST_CASE("pages imported beside a running step are what the step reads, and nothing else is waited for") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  for (uint64_t seed : {1, 2, 3, 4}) {
    simt::reset();
    simt::options().order_seed = seed;
    simt::options().runs_late = true;
    // K/V of a prompt, computed by the processor into its own pages.
    CpuBackendOptions cpu_options;
    cpu_options.kernels = runnable_columns().back();
    auto created = create_cpu_backend(model.config, model.weights, cpu_options);
    REQUIRE(created.ok());
    const size_t page_bytes = static_cast<size_t>((*created)->page_bytes()[0]);
    std::vector<uint8_t> memory(page_bytes * kPages + 64);
    uint8_t* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    REQUIRE((*created)->place_pages({kPages}, {aligned}).ok());
    PageDealer dealer(model.config, kPages, 9);
    TestSequence lent = dealer.deal(random_tokens(200, model.config.vocab_size, 3), 16);
    lent.tokens.resize(50);
    const std::vector<int32_t> expected = decode_greedily(created->get(), lent, 8, nullptr);

    auto gpu = make_gpu_backend(model, test_gpu_options(), kPages);
    TestSequence other = dealer.deal(random_tokens(200, model.config.vocab_size, 4), 16);
    other.tokens.resize(20);
    (void)decode_greedily(gpu.get(), other, 5, nullptr);  // its next step runs already
    simt::clear_counters();
    for (int block = 0; block < 3; ++block) {  // all but the last two tokens' page
      const PageId page = lent.pages[0][static_cast<size_t>(block)];
      REQUIRE(gpu->import_page(0, page, [&](uint8_t* to) {
        std::memcpy(to, aligned + static_cast<size_t>(page) * page_bytes, page_bytes);
        return ok_status();
      }).ok());
    }
    CHECK(simt::counters().h2d_bytes == static_cast<int64_t>(3 * page_bytes));  // the K/V, once
    CHECK(simt::counters().h2d_copies == 3);
    CHECK(simt::counters().synchronizes == 0);
    TestSequence decoded = lent;
    decoded.n_done = 48;
    StepBatch batch;
    add_item(&batch, &decoded, 2);
    batch.logit_rows.erase(batch.logit_rows.begin());
    REQUIRE(gpu->forward(batch).ok());
    const auto row = gpu->logits(0);
    CHECK(std::max_element(row.begin(), row.end()) - row.begin() == expected[0]);
    check_no_reports();
  }
  simt::reset();
}

TEST_CASE("a decode step in full swing is one graph, one draw and a few bytes") {
  simt::reset();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  auto backend = make_gpu_backend(model, test_gpu_options(), kPages);
  (void)decode(backend.get(), model, 4, 2);
  simt::clear_counters();
  const int64_t mallocs = simt::counters().mallocs;
  (void)decode(backend.get(), model, 40, 2);
  const simt::Counters& c = simt::counters();
  CHECK(c.mallocs == mallocs);
  CHECK(c.host_allocs == 0);
  CHECK(c.instantiates <= 1);
  CHECK(c.updates == 0);
  CHECK(c.graph_launches >= 39);
  CHECK(c.d2h_copies == 40);               // the prompt's logits, then what was drawn
  CHECK(c.graph_nodes / c.graph_launches <= 8 * model.config.n_layers);
  // Only where a page begins does the host send anything.
  CHECK(c.h2d_copies <= 4 + 3 * (1 + 40 / 16));
  check_no_reports();
}

TEST_CASE("weights and K/V are read once a token, in whole sectors") {
  simt::reset();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  GpuOptions options = test_gpu_options();
  options.runs_ahead = false;
  const auto memory = plan_gpu_memory(model.config, model.weights, test_gpu(), options);
  REQUIRE(memory.ok());
  auto backend = make_gpu_backend(model, options, kPages);
  PageDealer dealer(model.config, kPages, 2);
  TestSequence sequence = dealer.deal(random_tokens(112, model.config.vocab_size, 2), 16);
  StepBatch prompt, step;
  add_item(&prompt, &sequence, 111);
  REQUIRE(backend->forward(prompt).ok());
  std::string weights, pages;
  for (const simt::LiveAllocation& a : simt::allocations()) {
    if (a.n_bytes == static_cast<size_t>(memory->weights_bytes)) weights = a.name;
    if (a.n_bytes == static_cast<size_t>(memory->page_bytes[0] * kPages)) pages = a.name;
  }
  simt::options().counts_traffic = true;
  simt::clear_traffic();
  add_item(&step, &sequence, 1);
  REQUIRE(backend->forward(step).ok());
  (void)backend->logits(0);
  simt::options().counts_traffic = false;
  int64_t weight_bytes = 0, page_bytes = 0, sectors = 0, least = 0;
  for (const simt::Traffic& t : simt::traffic()) {
    if (t.allocation != weights && t.allocation != pages) continue;
    (t.allocation == weights ? weight_bytes : page_bytes) += t.footprint_bytes;
    sectors += t.read_sectors, least += t.read_least;
  }
  INFO("weights " << weight_bytes << " of " << memory->weights_bytes << ", K/V " << page_bytes << " of " << memory->page_bytes[0] * 7);
  CHECK(weight_bytes <= memory->weights_bytes * 115 / 100);
  CHECK(weight_bytes >= memory->weights_bytes / 2);
  CHECK(page_bytes <= memory->page_bytes[0] * 7 * 115 / 100);
  CHECK(page_bytes >= memory->page_bytes[0] * 7 * 85 / 100);
  CHECK(sectors * 100 <= least * 110);
  check_no_reports();
}

TEST_CASE("faults of the device come back as a device lost, a lack of memory as a lack of memory") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  const auto run = [&]() -> Status {
    auto created = create_gpu_backend(model.config, model.weights, test_gpu(), test_gpu_options());
    if (!created.ok()) return created.status();
    CHECK_OK((*created)->reserve_pages({kPages}));
    PageDealer dealer(model.config, kPages, 2);
    TestSequence sequence = dealer.deal(random_tokens(60, model.config.vocab_size, 2), 16);
    SamplingParams greedy;
    for (int i = 0; i < 60; ++i) {
      StepBatch batch;
      add_item(&batch, &sequence, 1);
      CHECK_OK((*created)->forward(batch));
      SampleRequest request;
      request.params = &greedy;
      SampleResult result;
      CHECK_OK((*created)->sample(std::span(&request, 1), std::span(&result, 1)));
    }
    return ok_status();
  };
  for (int64_t at = 1; at <= 4; ++at) {
    simt::reset();
    simt::options().fail_malloc_at = at;
    CHECK(run().code() == StatusCode::kExhausted);
  }
  for (int64_t at : {1, 7, 100, 333}) {
    simt::reset();
    simt::options().sticky_at_launch = at;
    simt::options().sticky_error = cudaErrorEccUncorrectable;
    const Status status = run();
    CHECK(status.code() == StatusCode::kUnavailable);
    CHECK(status.message().find("ECC") != std::string::npos);
    simt::reset();
    simt::options().lose_at_launch = at;
    CHECK(run().code() == StatusCode::kUnavailable);
  }
  simt::reset();
  CHECK(run().ok());
  simt::reset();
}

}  // namespace tandem
