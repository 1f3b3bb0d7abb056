// What a decode step notices of others' pages that cross the bus beside it: nothing.
#include <catch2/catch.hpp>
#include <cstring>

#include "simt.h"
#include "tests/gpu/gpu_models.h"
#include "tests/gpu/no_reports.h"

namespace tandem {
namespace {

constexpr int kPages = 40, kSwapPages = 20;

// A sequence whose next tokens are drawn greedily, one a step.
struct Stream {
  TestSequence sequence;
  Stream(TestSequence s, int n_prompt) : sequence(std::move(s)) { sequence.tokens.resize(static_cast<size_t>(n_prompt)); }
  int32_t step(Backend* backend) { return step_greedily(backend, &sequence); }
};

std::unique_ptr<Backend> make_tiered(const TinyModel& model) {
  auto created = create_gpu_backend(model.config, model.weights, test_gpu(), test_gpu_options());
  REQUIRE(created.status().message() == "");
  const size_t n_groups = model.config.kv_groups.size();
  REQUIRE((*created)->reserve_tiers(std::vector<int>(n_groups, kPages), std::vector<int>(n_groups, kSwapPages)).message() == "");
  return std::move(*created);
}

// The pages of its first 48 tokens, and places for them in the swap tier.
std::vector<PageCopy> swap_out(const TestSequence& s) {
  std::vector<PageCopy> copies;
  for (size_t g = 0; g < s.pages.size(); ++g) {
    for (size_t i = 0; i < 3; ++i) copies.push_back({static_cast<int>(g), s.pages[g][i], kPages + static_cast<PageId>(i)});
  }
  return copies;
}

}  // namespace

TEST_CASE("pages are swapped out and in beside running steps, and every text stays what it is alone") {
  for (TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    const TinyModel model = make_tiny_model(kind, GgmlType::kQ8_0, 5);
    PageDealer dealer(model.config, kPages, 9);
    const TestSequence a0 = dealer.deal(random_tokens(80, model.config.vocab_size, 3), 16);
    const TestSequence b0 = dealer.deal(random_tokens(80, model.config.vocab_size, 4), 16);
    TestSequence c0 = a0;  // in the pages that a leaves
    c0.tokens = random_tokens(80, model.config.vocab_size, 6);
    simt::reset();
    const auto alone = [&](const TestSequence& s, int n) {
      auto backend = make_tiered(model);
      Stream stream(s, 36);
      std::vector<int32_t> text;
      for (int i = 0; i < n; ++i) text.push_back(stream.step(backend.get()));
      return text;
    };
    const std::vector<int32_t> a_alone = alone(a0, 10), b_alone = alone(b0, 12), c_alone = alone(c0, 4);
    for (uint64_t seed : {1, 2, 3}) {
      simt::reset();
      simt::options().order_seed = seed;
      simt::options().runs_late = true;
      auto backend = make_tiered(model);
      Stream a(a0, 36), b(b0, 36), c(c0, 36);
      std::vector<int32_t> a_text, b_text, c_text;
      for (int i = 0; i < 5; ++i) a_text.push_back(a.step(backend.get()));  // the sixth is begun
      const std::vector<PageCopy> out = swap_out(a.sequence);
      std::vector<PageCopy> back;
      for (const PageCopy& copy : out) back.push_back({copy.group, copy.to, copy.from});
      const int64_t waits = simt::counters().synchronizes;
      REQUIRE(backend->copy_pages(out).ok());
      CHECK(simt::counters().synchronizes == waits);
      for (int i = 0; i < 6; ++i) b_text.push_back(b.step(backend.get()));
      for (int i = 0; i < 4; ++i) c_text.push_back(c.step(backend.get()));
      REQUIRE(backend->copy_pages(back).ok());
      for (int i = 0; i < 6; ++i) b_text.push_back(b.step(backend.get()));
      for (int i = 0; i < 5; ++i) a_text.push_back(a.step(backend.get()));
      CHECK(a_text == a_alone);
      CHECK(b_text == b_alone);
      CHECK(c_text == c_alone);
      check_no_reports();
    }
  }
  simt::reset();
}

TEST_CASE("the steps of others are the same launches and copies while a prompt's pages are imported") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  constexpr int kSteps = 24;
  const auto run = [&](bool imports) {
    simt::reset();
    auto backend = make_tiered(model);
    PageDealer dealer(model.config, kPages, 9);
    Stream b(dealer.deal(random_tokens(80, model.config.vocab_size, 4), 16), 36);
    const TestSequence lent = dealer.deal(random_tokens(400, model.config.vocab_size, 3), 16);
    for (int i = 0; i < 3; ++i) (void)b.step(backend.get());
    simt::clear_counters();
    for (int i = 0; i < kSteps; ++i) {
      if (imports) {
        REQUIRE(backend->import_page(0, lent.pages[0][static_cast<size_t>(i)], [&](uint8_t* to) {
          std::memset(to, i, static_cast<size_t>(backend->page_bytes()[0]));
          return ok_status();
        }).ok());
      }
      (void)b.step(backend.get());
    }
    check_no_reports();
    return simt::counters();
  };
  const simt::Counters alone = run(false), beside = run(true);
  const int64_t page = plan_gpu_memory(model.config, model.weights, test_gpu(), test_gpu_options())->page_bytes[0];
  // No step is run again, waited for or given more to do: what is added are the pages, once.
  CHECK(beside.launches == alone.launches);
  CHECK(beside.graph_launches == alone.graph_launches);
  CHECK(beside.graph_nodes == alone.graph_nodes);
  CHECK(beside.d2h_bytes == alone.d2h_bytes);
  CHECK(beside.synchronizes == alone.synchronizes);
  CHECK(beside.h2d_copies == alone.h2d_copies + kSteps);
  CHECK(beside.h2d_bytes == alone.h2d_bytes + kSteps * page);
  simt::reset();
}

}  // namespace tandem
