#include "tests/golden/golden_model.h"

#include <fcntl.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "cpu/isa_select.h"

namespace tandem {

std::string GoldenModel::real_path(const std::string& file) {
  const char* folder = std::getenv("TANDEM_MODELS_DIR");
  if (folder == nullptr) FAIL("TANDEM_MODELS_DIR is not set: the folder of the two test models");
  return std::string(folder) + "/" + file;
}

std::unique_ptr<GgufModel> GoldenModel::open(const std::string& path) {
  std::vector<GgufFile> files;
  files.push_back({UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)), path});
  INFO(path);
  REQUIRE(files[0].fd.valid());
  auto model = GgufModel::open(std::move(files));
  if (!model.ok()) FAIL(model.status().message());
  return std::move(model).value();
}

const KernelTable& GoldenModel::best_kernels() {
  auto kernels = select_kernels(detect_cpu(), "");
  if (!kernels.ok()) FAIL(kernels.status().message());
  return **kernels;
}

GoldenModel::GoldenModel(const std::string& path, bool float_activations, int max_tokens, const KernelTable* kernels) {
  const auto file = open(path);
  auto config = read_model_config(*file);
  if (!config.ok()) FAIL(config.status().message());
  auto weights = load_weights(*file, *config);
  if (!weights.ok()) FAIL(weights.status().message());
  CpuBackendOptions options;
  options.kernels = kernels != nullptr ? kernels : &best_kernels();
  options.n_threads = 2;
  options.float_activations = float_activations;
  auto backend = create_cpu_backend(*config, *weights, options);
  if (!backend.ok()) FAIL(backend.status().message());
  backend_ = std::move(backend).value();
  pages_.resize(static_cast<size_t>(max_tokens / options.page_size + 1));
  std::iota(pages_.begin(), pages_.end(), 0);
  const std::vector<int> n_pages(config->kv_groups.size(), static_cast<int>(pages_.size()));
  REQUIRE(backend_->reserve_pages(n_pages).message() == "");
}

void GoldenModel::run(std::span<const int32_t> ids, int chunk, int first_visited,
                      const std::function<void(int, std::span<const float>)>& visit) {
  for (int begin = 0; begin < static_cast<int>(ids.size()); begin += chunk) {
    const int end = std::min(begin + chunk, static_cast<int>(ids.size()));
    StepBatch batch;
    StepItem item;
    item.first_pos = begin;
    item.n_tokens = end - begin;
    item.page_tables.assign(backend_->config().kv_groups.size(), pages_.data());
    batch.items.push_back(item);
    batch.tokens.assign(ids.begin() + begin, ids.begin() + end);
    for (int pos = std::max(begin, first_visited); pos < end; ++pos) batch.logit_rows.push_back(pos - begin);
    REQUIRE(backend_->forward(batch).message() == "");
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
      visit(begin + batch.logit_rows[i], backend_->logits(static_cast<int>(i)));
    }
  }
}

double log_sum_exp(std::span<const float> x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (float v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

Likeliest likeliest(std::span<const float> logits) {
  const auto best = std::max_element(logits.begin(), logits.end());
  float second = -INFINITY;
  for (auto it = logits.begin(); it != logits.end(); ++it) {
    if (it != best) second = std::max(second, *it);
  }
  return {static_cast<int32_t>(best - logits.begin()), static_cast<double>(*best - second)};
}

}  // namespace tandem
