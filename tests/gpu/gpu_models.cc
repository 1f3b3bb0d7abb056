#include "tests/gpu/gpu_models.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

namespace tandem {

GpuFacts test_gpu() {
  auto gpu = open_gpu(0);
  INFO(gpu.status().message());
  REQUIRE(gpu.ok());
  return *gpu;
}

GpuOptions test_gpu_options() {
  GpuOptions options;
  options.context_tokens = 600;
  options.max_batch_size = 8;
  options.measures_paths = false;
  return options;
}

std::unique_ptr<Backend> make_gpu_backend(const TinyModel& model, GpuOptions options, int n_pages) {
  auto created = create_gpu_backend(model.config, model.weights, test_gpu(), std::move(options));
  INFO(created.status().message());
  REQUIRE(created.ok());
  const Status reserved = (*created)->reserve_pages(std::vector<int>(model.config.kv_groups.size(), n_pages));
  INFO(reserved.message());
  REQUIRE(reserved.ok());
  return std::move(created).value();
}

std::unique_ptr<Backend> make_cpu_backend(const TinyModel& model, KvType kv_type, int n_pages) {
  CpuBackendOptions options;
  for (const KernelTable* column : runnable_columns()) {  // the best, but for the one that rounds activations to bfloat16
    if (std::string(column->isa) != "avx512bf16") options.kernels = column;
  }
  options.kv_type = kv_type;
  return make_backend(model, options, n_pages);
}

int32_t step_greedily(Backend* backend, TestSequence* sequence, WeightSet weights, std::vector<float>* logits) {
  StepBatch batch;
  add_item(&batch, sequence, static_cast<int>(sequence->tokens.size()) - sequence->n_done);
  batch.logit_rows = {batch.logit_rows.back()};
  batch.weights = weights;
  const Status forwarded = backend->forward(batch);
  INFO(forwarded.message());
  REQUIRE(forwarded.ok());
  if (logits != nullptr) logits->assign(backend->logits(0).begin(), backend->logits(0).end());
  SamplingParams greedy;
  greedy.temperature = 0;
  SampleRequest request;
  request.params = &greedy;
  request.position = static_cast<uint32_t>(sequence->tokens.size());
  SampleResult result;
  const Status sampled = backend->sample(std::span(&request, 1), std::span(&result, 1));
  INFO(sampled.message());
  REQUIRE(sampled.ok());
  sequence->tokens.push_back(result.token);
  return result.token;
}

std::vector<int32_t> decode_greedily(Backend* backend, TestSequence sequence, int n, std::vector<float>* margins) {
  sequence.n_done = 0;
  std::vector<int32_t> drawn;
  std::vector<float> row;
  while (static_cast<int>(drawn.size()) < n) {
    drawn.push_back(step_greedily(backend, &sequence, WeightSet::kFull, margins != nullptr ? &row : nullptr));
    if (margins == nullptr) continue;
    std::nth_element(row.begin(), row.begin() + 1, row.end(), std::greater<>());
    margins->push_back(*std::max_element(row.begin(), row.begin() + 2) - std::min(row[0], row[1]));
  }
  return drawn;
}

double worst_difference(const std::vector<float>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0, squares = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return worst / std::sqrt(squares / static_cast<double>(got.size()));
}

}  // namespace tandem
