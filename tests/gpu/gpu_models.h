// Models on the device beside the same on the processor, for tests. The device is the stand-in, or a real one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/gpu_backend.h"
#include "tests/cpu/tiny_model.h"

namespace tandem {

// A driver library, where the test runs on the stand-in, is beside the test program (see CMakeLists.txt).
GpuFacts test_gpu();
GpuOptions test_gpu_options();
// With `n_pages` pages a group. Fails the test on an error.
std::unique_ptr<Backend> make_gpu_backend(const TinyModel& model, GpuOptions options, int n_pages);
std::unique_ptr<Backend> make_cpu_backend(const TinyModel& model, KvType kv_type, int n_pages);

// One step of the tokens that are not done yet, then the likeliest one behind them, which becomes the sequence's. logits: what
// it was drawn from; or null.
int32_t step_greedily(Backend* backend, TestSequence* sequence, WeightSet weights = WeightSet::kFull, std::vector<float>* logits = nullptr);

// Feeds the prompt and draws greedily until `n` tokens are there, a step a token. margins: of the best two logits of
// each draw; or null.
std::vector<int32_t> decode_greedily(Backend* backend, TestSequence sequence, int n, std::vector<float>* margins);

// Largest difference of the rows, over the rms of the expected ones.
double worst_difference(const std::vector<float>& got, const std::vector<float>& expected);

}  // namespace tandem
