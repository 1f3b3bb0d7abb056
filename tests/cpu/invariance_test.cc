// The invariance rule: bits depend on the model, the kernels and the position only.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/kernel_table.h"
#include "tests/cpu/tiny_model.h"

namespace tandem {
namespace {

constexpr int kPages = 64, kLength = 100;

struct Setting {
  TinyKind kind;
  GgmlType type;
  KvType kv_type;
  bool float_activations;
  int page_size;
};
const Setting kSettings[] = {
    {TinyKind::kPlain, GgmlType::kQ4_0, KvType::kF16, false, 16},
    {TinyKind::kPlain, GgmlType::kQ8_0, KvType::kQ8_0, false, 32},
    {TinyKind::kPlain, GgmlType::kF16, KvType::kF16, false, 16},
    {TinyKind::kVaried, GgmlType::kQ8_0, KvType::kF16, false, 16},
    {TinyKind::kVaried, GgmlType::kF32, KvType::kF16, true, 16},
};

// The reference column is slow: the first and the most varied setting are enough of it.
bool too_slow(const Setting& s, const KernelTable* kernels) {
  return kernels == &kernel_table_ref() && &s != &kSettings[0] && &s != &kSettings[3];
}

CpuBackendOptions options_of(const Setting& s, const KernelTable* kernels, int n_threads) {
  CpuBackendOptions options;
  options.kernels = kernels;
  options.n_threads = n_threads;
  options.float_activations = s.float_activations;
  options.page_size = s.page_size;
  options.kv_type = s.kv_type;
  return options;
}

}  // namespace

TEST_CASE("logits do not depend on chunks, threads, pages or company") {
  for (const Setting& s : kSettings) {
    const TinyModel model = make_tiny_model(s.kind, s.type, 1);
    const ModelConfig& config = model.config;
    const auto tokens = random_tokens(kLength, config.vocab_size, 2);
    for (const KernelTable* kernels : runnable_columns()) {
      if (too_slow(s, kernels)) continue;
      CAPTURE(kernels->isa, static_cast<int>(s.kind), static_cast<int>(s.type),
              s.float_activations);
      auto backend = make_backend(model, options_of(s, kernels, 1), kPages);
      PageDealer dealer(config, kPages, 3);
      const auto whole = run_chunked(backend.get(), dealer.deal(tokens, s.page_size), kLength);
      for (float x : whole) REQUIRE(std::isfinite(x));

      for (int chunk : {1, 7, 16, 64}) {
        CAPTURE(chunk);
        PageDealer other(config, kPages, 100 + static_cast<uint32_t>(chunk));  // other pages, too
        CHECK(same_bits(whole, run_chunked(backend.get(), other.deal(tokens, s.page_size), chunk)));
      }
      for (int n_threads : {2, 3}) {
        CAPTURE(n_threads);
        auto team = make_backend(model, options_of(s, kernels, n_threads), kPages);
        PageDealer other(config, kPages, 9);
        const TestSequence sequence = other.deal(tokens, s.page_size);
        CHECK(same_bits(whole, run_chunked(team.get(), sequence, kLength)));
        CHECK(same_bits(whole, run_chunked(team.get(), sequence, 1)));
      }
    }
  }
}

TEST_CASE("a batch of 16 gives each sequence the bits it has alone") {
  for (const Setting& s : kSettings) {
    const TinyModel model = make_tiny_model(s.kind, s.type, 4);
    const ModelConfig& config = model.config;
    const size_t vocab = static_cast<size_t>(config.vocab_size);
    for (const KernelTable* kernels : runnable_columns()) {
      if (too_slow(s, kernels)) continue;
      CAPTURE(kernels->isa, static_cast<int>(s.kind), static_cast<int>(s.type),
              s.float_activations);
      auto backend = make_backend(model, options_of(s, kernels, 2), 128);
      PageDealer dealer(config, 128, 5);
      std::vector<TestSequence> sequences;
      std::vector<std::vector<float>> alone;
      for (int i = 0; i < 16; ++i) {
        sequences.push_back(
            dealer.deal(random_tokens(20 + 5 * i, config.vocab_size, 50 + i), s.page_size));
        alone.push_back(run_chunked(backend.get(), sequences.back(), 1000));
      }
      // Prompts of different lengths in one step, then decode steps until all have ended.
      for (bool is_first = true;; is_first = false) {
        StepBatch batch;
        std::vector<std::pair<size_t, int>> rows;  // sequence, position
        for (size_t i = 0; i < sequences.size(); ++i) {
          TestSequence& q = sequences[i];
          const int left = static_cast<int>(q.tokens.size()) - q.n_done;
          const int n = is_first ? 3 + 2 * static_cast<int>(i) % 15 : std::min(left, 1);
          for (int j = 0; j < n; ++j) rows.emplace_back(i, q.n_done + j);
          if (n > 0) add_item(&batch, &q, n);
        }
        if (rows.empty()) break;
        const auto logits = run_step(backend.get(), batch);
        int n_different = 0;
        for (size_t r = 0; r < rows.size(); ++r) {
          const float* expected =
              alone[rows[r].first].data() + static_cast<size_t>(rows[r].second) * vocab;
          n_different +=
              std::memcmp(expected, logits.data() + r * vocab, vocab * sizeof(float)) != 0;
        }
        REQUIRE(n_different == 0);
      }
    }
  }
}

TEST_CASE("a row's logits do not depend on which rows are asked for") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 13);
  const size_t vocab = static_cast<size_t>(model.config.vocab_size);
  for (const KernelTable* kernels : runnable_columns()) {
    CAPTURE(kernels->isa);
    auto backend = make_backend(model, options_of(kSettings[3], kernels, 2), kPages);
    PageDealer dealer(model.config, kPages, 14);
    const TestSequence sequence = dealer.deal(random_tokens(40, model.config.vocab_size, 15), 16);
    const auto all = run_chunked(backend.get(), sequence, 40);
    for (const std::vector<int>& rows : {std::vector<int>{39}, {0}, {3, 4, 20, 38}, {}}) {
      TestSequence q = sequence;
      StepBatch batch;
      add_item(&batch, &q, 40);
      batch.logit_rows = rows;
      std::vector<float> expected;
      for (int r : rows) {
        expected.insert(expected.end(), all.begin() + static_cast<ptrdiff_t>(r * vocab),
                        all.begin() + static_cast<ptrdiff_t>((r + 1) * vocab));
      }
      CHECK(same_bits(expected, run_step(backend.get(), batch)));
    }
  }
}

// A step with few tokens splits long rows along their keys (cpu/step_plan.cc); the bits must not show it.
TEST_CASE("a long row's logits do not depend on how many threads share its keys") {
  constexpr int kLong = 2 * kAttentionPartKeys + 70, kLast = 72;
  for (const Setting& s : {kSettings[0], kSettings[1], kSettings[3]}) {
    const TinyModel model = make_tiny_model(s.kind, s.type, 21);
    const size_t vocab = static_cast<size_t>(model.config.vocab_size);
    const auto tokens = random_tokens(kLong, model.config.vocab_size, 22);
    for (const KernelTable* kernels : runnable_columns()) {
      if (kernels == &kernel_table_ref() && s.kind == TinyKind::kVaried) continue;  // slow
      CAPTURE(kernels->isa, static_cast<int>(s.kind));
      auto alone = make_backend(model, options_of(s, kernels, 1), kPages);
      PageDealer dealer(model.config, kPages, 23);
      const auto whole = run_chunked(alone.get(), dealer.deal(tokens, s.page_size), kLong);
      for (int n_threads : {2, 4}) {
        CAPTURE(n_threads);
        auto team = make_backend(model, options_of(s, kernels, n_threads), kPages);
        PageDealer other(model.config, kPages, 24);
        TestSequence sequence = other.deal(tokens, s.page_size);
        StepBatch prompt;
        add_item(&prompt, &sequence, kLong - kLast);
        prompt.logit_rows.clear();
        run_step(team.get(), prompt);
        for (int n : {1, 1, 3, 33, 9, 20, 4, 1}) {
          const size_t at = static_cast<size_t>(sequence.n_done) * vocab;
          StepBatch batch;
          add_item(&batch, &sequence, n);
          const auto got = run_step(team.get(), batch);
          CHECK(std::memcmp(got.data(), whole.data() + at, got.size() * sizeof(float)) == 0);
        }
        CHECK(sequence.n_done == kLong);
      }
    }
  }
}

TEST_CASE("pages that left the window are not read") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 6);
  for (const KernelTable* kernels : runnable_columns()) {
    CAPTURE(kernels->isa);
    auto backend = make_backend(model, options_of(kSettings[3], kernels, 1), kPages);
    PageDealer dealer(model.config, kPages, 7);
    TestSequence kept = dealer.deal(random_tokens(kLength, model.config.vocab_size, 8), 16);
    TestSequence dropped = dealer.deal(kept.tokens, 16);
    for (int i = 0; i < kLength; ++i) {
      StepBatch a, b;
      for (int page = 0; page < (i - 20 + 1) / 16; ++page)
        dropped.pages[0][static_cast<size_t>(page)] = -1;
      add_item(&a, &kept, 1);
      add_item(&b, &dropped, 1);
      REQUIRE(same_bits(run_step(backend.get(), a), run_step(backend.get(), b)));
    }
  }
}

TEST_CASE("a forked sequence goes on from copied pages") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 10);
  auto backend = make_backend(model, options_of(kSettings[3], &kernel_table_ref(), 1), kPages);
  PageDealer dealer(model.config, kPages, 11);
  TestSequence first = dealer.deal(random_tokens(40, model.config.vocab_size, 12), 16);
  TestSequence fork = dealer.deal(first.tokens, 16);
  StepBatch prompt;
  add_item(&prompt, &first, 37);
  run_step(backend.get(), prompt);
  std::vector<PageCopy> copies;
  for (int g = 0; g < 2; ++g) {
    for (size_t i = 0; i < first.pages[g].size(); ++i) {
      copies.push_back({g, first.pages[g][i], fork.pages[g][i]});
    }
  }
  REQUIRE(backend->copy_pages(copies).ok());
  fork.n_done = 37;
  StepBatch a, b;
  add_item(&a, &first, 3);
  add_item(&b, &fork, 3);
  CHECK(same_bits(run_step(backend.get(), a), run_step(backend.get(), b)));
  const PageCopy bad{0, 0, kPages};
  CHECK(!backend->copy_pages({&bad, 1}).ok());
}

}  // namespace tandem
