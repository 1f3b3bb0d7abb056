// Small random models in memory, and sequences with pages of their own, for tests of the CPU backend.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/cpu_backend.h"

namespace tandem {

struct TinyModel {
  ModelConfig config;
  ModelWeights weights;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> storage;
};

// kPlain: two equal layers. kVaried: everything a ModelConfig can ask for at once (two KV groups, a window
// of 20, biases, q/k norms, post norms, softcaps, two ropes of both styles, GeGLU, embedding scale).
enum class TinyKind { kPlain, kVaried };
TinyModel make_tiny_model(TinyKind kind, GgmlType type, uint32_t seed);

// A backend with a pool of `n_pages` pages per group. Fails the test on an error.
std::unique_ptr<Backend> make_backend(const TinyModel& model, CpuBackendOptions options, int n_pages);

// The same, `lean`'s weights being its lean set.
std::unique_ptr<Backend> make_backend_with_lean(const TinyModel& model, const TinyModel& lean, CpuBackendOptions options, int n_pages);

// All columns that this machine runs.
std::vector<const KernelTable*> runnable_columns();

// A sequence whose pages are scattered over the pools.
struct TestSequence {
  std::vector<int32_t> tokens;
  std::vector<std::vector<PageId>> pages;  // per group
  int n_done = 0;
};

// Hands out each page once, in an order shuffled by seed.
class PageDealer {
 public:
  PageDealer(const ModelConfig& config, int n_pages, uint32_t seed);
  TestSequence deal(std::vector<int32_t> tokens, int page_size);

 private:
  std::vector<std::vector<PageId>> free_;
};

std::vector<int32_t> random_tokens(int n, int vocab_size, uint32_t seed);

// Adds the next `n` tokens of `sequence` to the batch, all with logits.
void add_item(StepBatch* batch, TestSequence* sequence, int n);

// Logits of all tokens of the sequence, run in chunks of `chunk`, one row after another. Positions from n_full on are
// computed with the lean set.
std::vector<float> run_chunked(Backend* backend, TestSequence sequence, int chunk, int n_full = INT32_MAX);

// The rows of the batch's logits one after another.
std::vector<float> run_step(Backend* backend, const StepBatch& batch);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

// Of a backend without a lean set, with at least `n_pages` pages a group: it says so, refuses a lean step and runs a full one.
void check_lean_step_is_refused(Backend* backend, int n_pages);

}  // namespace tandem
