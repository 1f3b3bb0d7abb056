// Two sets of weights, in one file or in two: each has the bits that it has alone, the invariance rule holds, and a sequence
// may change from one to the other at any position with its K/V kept.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "kernels/kernel_table.h"
#include "tests/cpu/tiny_model.h"

namespace tandem {
namespace {

constexpr int kPages = 64, kLength = 70;

CpuBackendOptions options_of(const KernelTable* kernels, bool has_lean_set, int n_threads) {
  CpuBackendOptions options;
  options.kernels = kernels;
  options.n_threads = n_threads;
  options.pack.has_lean_set = has_lean_set;
  return options;
}

}  // namespace

TEST_CASE("the full set has the bits of plain packing, the lean set is another one of half the bytes") {
  for (const TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    const TinyModel model = make_tiny_model(kind, GgmlType::kQ8_0, 21);
    const auto tokens = random_tokens(kLength, model.config.vocab_size, 22);
    for (const KernelTable* kernels : runnable_columns()) {
      CAPTURE(kernels->isa, static_cast<int>(kind));
      auto plain = make_backend(model, options_of(kernels, false, 2), kPages);
      auto nested = make_backend(model, options_of(kernels, true, 2), kPages);
      CHECK(plain->weight_bytes().lean == 0);
      const WeightBytes bytes = nested->weight_bytes();
      CHECK(bytes.full >= plain->weight_bytes().full);
      CHECK(static_cast<double>(bytes.full) < 1.01 * static_cast<double>(plain->weight_bytes().full));
      CHECK(bytes.lean > 0);
      if (kernels != &kernel_table_ref()) CHECK(static_cast<double>(bytes.lean) < 0.54 * static_cast<double>(bytes.full));
      PageDealer dealer(model.config, kPages, 23);
      const TestSequence sequence = dealer.deal(tokens, 16);
      const auto full = run_chunked(plain.get(), sequence, kLength);
      CHECK(same_bits(full, run_chunked(nested.get(), sequence, kLength)));
      const auto lean = run_chunked(nested.get(), sequence, kLength, 0);
      CHECK_FALSE(same_bits(full, lean));
      // Another, but of the same model: logits of two models that have nothing to do with each other differ by twice
      // their own squares.
      double difference = 0, spread = 0;
      for (size_t i = 0; i < full.size(); ++i) {
        REQUIRE(std::isfinite(lean[i]));
        difference += std::pow(static_cast<double>(full[i] - lean[i]), 2);
        spread += std::pow(static_cast<double>(full[i]), 2);
      }
      CHECK(difference < 0.25 * (2 * spread));
    }
  }
}

TEST_CASE("with either set, and from one to the other, bits depend on neither chunks nor threads") {
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 24);
  const auto tokens = random_tokens(kLength, model.config.vocab_size, 25);
  for (const KernelTable* kernels : runnable_columns()) {
    auto backend = make_backend(model, options_of(kernels, true, 1), kPages);
    auto team = make_backend(model, options_of(kernels, true, 2), kPages);
    PageDealer dealer(model.config, kPages, 26);
    const TestSequence sequence = dealer.deal(tokens, 16);
    const auto full = run_chunked(backend.get(), sequence, kLength);
    const size_t vocab = static_cast<size_t>(model.config.vocab_size);
    for (const int n_full : {0, 17, 32, 69}) {
      CAPTURE(kernels->isa, n_full);
      const auto whole = run_chunked(backend.get(), sequence, kLength, n_full);
      CHECK(std::memcmp(whole.data(), full.data(), static_cast<size_t>(n_full) * vocab * sizeof(float)) == 0);
      CHECK_FALSE(same_bits(whole, full));
      for (const int chunk : {1, 16}) {
        CAPTURE(chunk);
        CHECK(same_bits(whole, run_chunked(backend.get(), sequence, chunk, n_full)));
      }
      CHECK(same_bits(whole, run_chunked(team.get(), sequence, 7, n_full)));
    }
  }
}

TEST_CASE("weights of another file as the lean set: each set has the bits that it has alone, on one set of pages") {
  for (const TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    const TinyModel model = make_tiny_model(kind, GgmlType::kQ8_0, 30);
    const auto tokens = random_tokens(kLength, model.config.vocab_size, 31);
    for (const GgmlType type : {GgmlType::kQ4_0, GgmlType::kF16, GgmlType::kQ8_0}) {
      const TinyModel other = make_tiny_model(kind, type, 32);
      for (const KernelTable* kernels : runnable_columns()) {
        CAPTURE(kernels->isa, static_cast<int>(kind), static_cast<int>(type));
        auto full = make_backend(model, options_of(kernels, false, 2), kPages);
        auto alone = make_backend(other, options_of(kernels, false, 2), kPages);
        auto both = make_backend_with_lean(model, other, options_of(kernels, true, 2), kPages);
        CHECK(both->weight_bytes().full == full->weight_bytes().full);  // plain: its halves would serve nobody
        CHECK(both->weight_bytes().lean == alone->weight_bytes().full);
        PageDealer dealer(model.config, kPages, 33);
        const TestSequence sequence = dealer.deal(tokens, 16);
        const auto wanted = run_chunked(full.get(), sequence, kLength);
        CHECK(same_bits(run_chunked(both.get(), sequence, kLength), wanted));
        CHECK(same_bits(run_chunked(both.get(), sequence, 7, 0), run_chunked(alone.get(), sequence, kLength)));
        // From one to the other: the second reads the K/V of the first.
        const auto whole = run_chunked(both.get(), sequence, kLength, 33);
        const size_t n = 33 * static_cast<size_t>(model.config.vocab_size);
        CHECK(std::memcmp(whole.data(), wanted.data(), n * sizeof(float)) == 0);
        CHECK_FALSE(same_bits(whole, wanted));
        CHECK(same_bits(whole, run_chunked(both.get(), sequence, 5, 33)));
      }
    }
  }
}

TEST_CASE("weights of another file that cannot be packed are told of, and there is no lean set") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ4_0, 34);
  TinyModel broken = make_tiny_model(TinyKind::kPlain, GgmlType::kF32, 35);
  auto* value = const_cast<uint8_t*>(broken.weights.layers[1].w_up.data);
  const float nan = std::nanf("");
  std::memcpy(value, &nan, sizeof nan);
  Status refused;
  LeanWeights lean;
  lean.weights = &broken.weights;
  lean.on_refused = [&](const Status& status) { refused = status; };
  auto backend = create_cpu_backend(model.config, model.weights, options_of(runnable_columns().back(), true, 1), lean);
  REQUIRE(backend.ok());
  CHECK(refused.code() == StatusCode::kDataLoss);
  CHECK(refused.message().find("layer 1 w_up") != std::string::npos);
  CHECK((*backend)->weight_bytes().lean == 0);
}

TEST_CASE("a step of a lean set that is not there is refused") {
  for (const auto& [type, has_lean_set] : {std::pair{GgmlType::kQ8_0, false}, {GgmlType::kQ4_0, true}, {GgmlType::kF16, true}}) {
    const TinyModel model = make_tiny_model(TinyKind::kPlain, type, 27);
    auto backend = make_backend(model, options_of(runnable_columns().back(), has_lean_set, 1), kPages);
    check_lean_step_is_refused(backend.get(), kPages);
  }
}

}  // namespace tandem
