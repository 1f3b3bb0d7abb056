// Two sets of weights on the device: the full set has the bits of plain packing, the lean one is the processor's, and a
// sequence goes from one to the other at any step with its K/V kept, through graphs and ahead of the host.
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>

#include "simt.h"
#include "tests/gpu/gpu_models.h"
#include "tests/gpu/no_reports.h"

namespace tandem {
namespace {

constexpr int kPages = 64, kLength = 70;
using SetOfStep = std::function<WeightSet(int)>;

// A prompt in one chunk, then a token a step, drawn greedily, each step with its set: the logits of all of them.
std::vector<float> decode(Backend* backend, TestSequence sequence, int n_steps, const SetOfStep& set_of) {
  std::vector<float> all, row;
  for (int i = 0; i < n_steps; ++i) {
    step_greedily(backend, &sequence, set_of(i), &row);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace

TEST_CASE("the device's full set has the bits of plain packing, its lean set the processor's logits") {
  simt::reset();
  for (const TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    const TinyModel model = make_tiny_model(kind, GgmlType::kQ8_0, 21);
    PageDealer dealer(model.config, kPages, 23);
    const TestSequence sequence = dealer.deal(random_tokens(kLength, model.config.vocab_size, 22), 16);
    auto cpu = make_cpu_backend(model, KvType::kF16, kPages);
    for (const bool float_activations : {false, true}) {
      CAPTURE(static_cast<int>(kind), float_activations);
      GpuOptions options = test_gpu_options();
      options.float_activations = float_activations;
      auto nested = make_gpu_backend(model, options, kPages);
      options.has_lean_set = false;
      auto plain = make_gpu_backend(model, options, kPages);
      CHECK(plain->weight_bytes().lean == 0);
      const WeightBytes bytes = nested->weight_bytes(), of_cpu = cpu->weight_bytes();
      CHECK(bytes.full == of_cpu.full);
      CHECK(bytes.lean == of_cpu.lean);
      CHECK(bytes.full > plain->weight_bytes().full);
      CHECK(static_cast<double>(bytes.full) < 1.01 * static_cast<double>(plain->weight_bytes().full));

      const auto full = run_chunked(plain.get(), sequence, kLength);
      CHECK(same_bits(run_chunked(nested.get(), sequence, kLength), full));
      CHECK(same_bits(run_chunked(nested.get(), sequence, 1), full));  // by graphs
      const auto lean = run_chunked(nested.get(), sequence, kLength, 0);
      CHECK_FALSE(same_bits(lean, full));
      CHECK(same_bits(run_chunked(nested.get(), sequence, 1, 0), lean));
      const double worst = worst_difference(lean, run_chunked(cpu.get(), sequence, kLength, 0));
      INFO("lean, worst difference over rms: " << worst);
      CHECK(worst < 0.02);                             // as of the full set
      CHECK(worst_difference(lean, full) > 2 * worst);  // nearer to the processor's lean set than to the full one
    }
  }
  check_no_reports();
}

TEST_CASE("which path was measured quicker with either set changes no bit") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 31);
  PageDealer dealer(model.config, kPages, 32);
  const TestSequence sequence = dealer.deal(random_tokens(kLength, model.config.vocab_size, 33), 16);
  GpuOptions options = test_gpu_options();
  auto fixed = make_gpu_backend(model, options, kPages);
  options.measures_paths = true;
  auto measured = make_gpu_backend(model, options, kPages);
  for (const int n_full : {0, kLength})
    CHECK(same_bits(run_chunked(measured.get(), sequence, kLength, n_full), run_chunked(fixed.get(), sequence, kLength, n_full)));
}

TEST_CASE("a sequence goes over to the device's lean set in its middle, and its bits depend on no chunks") {
  simt::reset();
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 24);
  auto gpu = make_gpu_backend(model, test_gpu_options(), kPages);
  auto cpu = make_cpu_backend(model, KvType::kF16, kPages);
  PageDealer dealer(model.config, kPages, 26);
  const TestSequence sequence = dealer.deal(random_tokens(kLength, model.config.vocab_size, 25), 16);
  const auto full = run_chunked(gpu.get(), sequence, kLength), lean = run_chunked(gpu.get(), sequence, kLength, 0);
  const size_t vocab = static_cast<size_t>(model.config.vocab_size);
  for (const int n_full : {17, 32, 69}) {
    CAPTURE(n_full);
    const auto whole = run_chunked(gpu.get(), sequence, kLength, n_full);
    CHECK(std::memcmp(whole.data(), full.data(), static_cast<size_t>(n_full) * vocab * sizeof(float)) == 0);
    CHECK_FALSE(same_bits(whole, full));
    CHECK_FALSE(same_bits({whole.end() - model.config.vocab_size, whole.end()}, {lean.end() - model.config.vocab_size, lean.end()}));  // the K/V stay
    CHECK(worst_difference(whole, run_chunked(cpu.get(), sequence, kLength, n_full)) < 0.02);
    for (const int chunk : {1, 9}) CHECK(same_bits(run_chunked(gpu.get(), sequence, chunk, n_full), whole));
  }
  check_no_reports();
}

TEST_CASE("graphs and steps launched ahead are of the set that is wanted, whenever it changes") {
  simt::reset();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 27);
  PageDealer dealer(model.config, kPages, 28);
  TestSequence sequence = dealer.deal(random_tokens(100, model.config.vocab_size, 29), 16);
  sequence.tokens.resize(20);
  constexpr int kSteps = 26, kSwitch = 8;  // at position 27, the guess at which is in the same page
  const SetOfStep schedules[] = {[](int) { return WeightSet::kFull; }, [](int) { return WeightSet::kLean; },
                                 [](int i) { return i < kSwitch ? WeightSet::kFull : WeightSet::kLean; },
                                 [](int i) { return i % 2 == 0 ? WeightSet::kFull : WeightSet::kLean; }};
  GpuOptions options = test_gpu_options();
  auto ahead = make_gpu_backend(model, options, kPages);
  options.runs_ahead = false;
  auto graphs = make_gpu_backend(model, options, kPages);
  options.uses_graphs = false;
  auto single = make_gpu_backend(model, options, kPages);
  std::vector<int64_t> n_launches;
  std::vector<std::vector<float>> results;
  for (const SetOfStep& set_of : schedules) {
    CAPTURE(results.size());
    results.push_back(decode(single.get(), sequence, kSteps, set_of));
    CHECK(same_bits(decode(graphs.get(), sequence, kSteps, set_of), results.back()));
    simt::clear_counters();
    CHECK(same_bits(decode(ahead.get(), sequence, kSteps, set_of), results.back()));
    n_launches.push_back(simt::counters().graph_launches);
  }
  CHECK_FALSE(same_bits(results[0], results[1]));
  CHECK_FALSE(same_bits(results[0], results[2]));
  CHECK(n_launches[1] == n_launches[0]);
  CHECK(n_launches[2] == n_launches[0] + 1);  // what was launched ahead with the set before
  CHECK(n_launches[3] > n_launches[0] + kSteps / 2);
  check_no_reports();
}

TEST_CASE("a lean step reads half of the weights from the device's memory") {
  simt::reset();
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 5);
  GpuOptions options = test_gpu_options();
  options.runs_ahead = false;
  const auto memory = plan_gpu_memory(model.config, model.weights, test_gpu(), options);
  REQUIRE(memory.ok());
  auto backend = make_gpu_backend(model, options, kPages);
  std::string weights;
  for (const simt::LiveAllocation& a : simt::allocations()) {
    if (a.n_bytes == static_cast<size_t>(memory->weights_bytes)) weights = a.name;
  }
  int64_t read[2] = {};
  for (const WeightSet set : {WeightSet::kFull, WeightSet::kLean}) {
    PageDealer dealer(model.config, kPages, 2);
    TestSequence sequence = dealer.deal(random_tokens(1, model.config.vocab_size, 2), 16);
    StepBatch step;
    add_item(&step, &sequence, 1);
    step.weights = set;
    simt::options().counts_traffic = true;
    simt::clear_traffic();
    (void)run_step(backend.get(), step);
    simt::options().counts_traffic = false;
    for (const simt::Traffic& t : simt::traffic()) {
      if (t.allocation == weights) read[static_cast<size_t>(set)] += t.footprint_bytes;
    }
  }
  const WeightBytes bytes = backend->weight_bytes();
  INFO("full " << read[0] << " of " << bytes.full << ", lean " << read[1] << " of " << bytes.lean);
  CHECK(read[0] > 3 * bytes.full / 4);  // of the last tile and the last group of blocks there is but a part
  CHECK(read[1] <= bytes.lean);
  CHECK(100 * read[1] > 50 * read[0]);
  CHECK(100 * read[1] < 56 * read[0]);
  simt::reset();
}

TEST_CASE("a step of a lean set that the device does not have is refused") {
  for (const auto& [type, has_lean_set] : {std::pair{GgmlType::kQ8_0, false}, {GgmlType::kQ4_0, true}, {GgmlType::kF16, true}}) {
    const TinyModel model = make_tiny_model(TinyKind::kPlain, type, 27);
    GpuOptions options = test_gpu_options();
    options.has_lean_set = has_lean_set;
    auto backend = make_gpu_backend(model, options, kPages);
    check_lean_step_is_refused(backend.get(), kPages);
  }
}

}  // namespace tandem
