#include "cpu/cpu_backend.h"

#include <fmt/format.h>

#include "base/check.h"
#include "cpu/cpu_forward.h"
#include "cpu/kv_pools.h"
#include "cpu/omp_team.h"
#include "cpu/packed_model.h"
#include "model/stage.h"

namespace tandem {
namespace {

KvType kv_type_in_force(const CpuBackendOptions& options) {
  return options.float_activations ? KvType::kF32 : options.kv_type;
}

ModelConfig config_in_force(const ModelConfig& config, const CpuBackendOptions& options) {
  return options.n_layers > 0 ? stage_config(config, 0, options.n_layers) : config;
}

// What options may say only of a whole model.
CpuBackendOptions options_in_force(CpuBackendOptions options, const ModelWeights& weights) {
  options.pack.has_lean_set = options.pack.has_lean_set && is_mostly_q8_0(weights);
  return options;
}

class CpuBackend : public Backend {
 public:
  CpuBackend(const ModelConfig& config, const CpuBackendOptions& options)
      : config_(config_in_force(config, options)),
        options_(options),
        team_(options.n_threads),
        kv_(config_, kv_type_in_force(options), options.page_size),
        sampler_scratch_(static_cast<size_t>(options.n_threads)) {}

  Status load(const ModelWeights& weights, const LeanWeights& lean) {
    CHECK_ASSIGN(model_, options_.n_layers > 0 ? load_first_layers(weights)
                                               : PackedModel::pack(weights, *options_.kernels, &team_, options_.pack));
    if (lean.weights != nullptr) load_lean(lean);
    forward_ = std::make_unique<CpuForward>(config_, *model_, *options_.kernels, &kv_, &team_,
                                            options_.float_activations, lean_.get(), options_.squares);
    return ok_status();
  }

  const ModelConfig& config() const override { return config_; }
  WeightBytes weight_bytes() const override {
    WeightBytes n = model_->weight_bytes(*options_.kernels);
    if (lean_) n.lean = lean_->weight_bytes(*options_.kernels).full;
    return n;
  }
  std::vector<int64_t> page_bytes() const override { return kv_.page_bytes(); }
  Status reserve_pages(const std::vector<int>& n_pages) override { return kv_.reserve(n_pages, options_.touch_pools_later); }
  Status place_pages(const std::vector<int>& n_pages, const std::vector<uint8_t*>& memory) override {
    return kv_.place(n_pages, memory);
  }
  Status touch_pages(const std::atomic<bool>& stop) override { return kv_.touch(stop); }
  Status forward(const StepBatch& batch) override {
    n_logit_rows_ = 0;
    CHECK_OK(forward_->run(batch));
    n_logit_rows_ = static_cast<int>(batch.logit_rows.size());
    return ok_status();
  }
  std::span<const float> logits(int i) override {
    CHECK_MSG(i >= 0 && i < n_logit_rows_, "no such logit row in the last forward");
    return forward_->logits(i);
  }
  Status sample(std::span<const SampleRequest> requests, std::span<SampleResult> results) override {
    CHECK(requests.size() == results.size());
    const auto sample_one = [&](size_t i, size_t thread) {
      sample_row(logits(requests[i].logit_row), requests[i], options_.kernels->log_sum_exp,
                 &sampler_scratch_[thread], &results[i]);
    };
    if (requests.size() == 1) {  // waking the team would cost more
      sample_one(0, 0);
      return ok_status();
    }
    team_.run([&](TeamMember& t) {
      t.share(static_cast<int64_t>(requests.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          sample_one(static_cast<size_t>(i), static_cast<size_t>(t.index()));
        }
      });
    });
    return ok_status();
  }
  std::span<const float> hidden() override { return options_.n_layers > 0 ? forward_->hidden() : std::span<const float>(); }
  Status copy_pages(std::span<const PageCopy> copies) override { return kv_.copy(copies); }
  Status import_page(int group, PageId to, const std::function<Status(uint8_t*)>& fill) override { return kv_.import(group, to, fill); }
  std::string description() const override {
    const size_t n_library = model_ ? model_->library.size() : 0;
    return fmt::format("cpu {} {} thread{}{}{}", options_.kernels->isa, options_.n_threads,
                       options_.n_threads == 1 ? "" : "s", options_.float_activations ? " float32 activations" : "",
                       n_library > 0 ? fmt::format(", {} matrices by {}", n_library, options_.pack.library->name()) : "");
  }

 private:
  // Of the whole model's file, where there is one: other workers have it in memory, and what is not read here costs
  // none. Else packed for this process alone.
  Result<std::unique_ptr<PackedModel>> load_first_layers(const ModelWeights& weights) {
    if (options_.pack.cache != nullptr) {
      PackOptions stored = options_.pack;
      stored.only_cached = true;
      auto whole = PackedModel::pack(weights, *options_.kernels, &team_, stored);
      if (whole.ok()) {
        (*whole)->layers.resize(static_cast<size_t>(options_.n_layers));
        (*whole)->output = {};
        (*whole)->output_norm.clear();
      }
      if (whole.ok() || whole.status().code() != StatusCode::kNotFound) return whole;
    }
    PackOptions own = options_.pack;
    own.cache = nullptr;
    return PackedModel::pack(stage_weights(weights, 0, options_.n_layers), *options_.kernels, &team_, own);
  }
  void load_lean(const LeanWeights& lean) {
    PackOptions plain = lean.pack;
    plain.has_lean_set = false;
    auto packed = PackedModel::pack(*lean.weights, *options_.kernels, &team_, plain);
    if (packed.ok()) lean_ = std::move(*packed);
    else lean.on_refused(packed.status());
  }

  const ModelConfig config_;
  const CpuBackendOptions options_;
  OmpTeam team_;
  KvPools kv_;
  std::unique_ptr<PackedModel> model_, lean_;  // lean_: the weights of another file, or null
  std::unique_ptr<CpuForward> forward_;
  std::vector<SamplerScratch> sampler_scratch_;  // per thread
  int n_logit_rows_ = 0;
};

// The sampler's buffers for a row: sampler.h's SamplerScratch.
constexpr int64_t kSamplerBytesPerToken = sizeof(float) + sizeof(std::pair<float, int32_t>) + sizeof(int32_t);

}  // namespace

Result<CpuMemory> plan_cpu_memory(const ModelConfig& whole, const ModelWeights& weights,
                                  const CpuBackendOptions& wanted, int n_tokens, int n_logit_rows,
                                  int context_tokens) {
  const CpuBackendOptions options = options_in_force(wanted, weights);
  CpuMemory memory;
  const ModelConfig config = config_in_force(whole, options);
  CHECK_ASSIGN(memory.weights_bytes,
               PackedModel::bytes_needed(options.n_layers > 0 ? stage_weights(weights, 0, options.n_layers) : weights,
                                         *options.kernels, options.pack));
  KvPools pools(config, kv_type_in_force(options), options.page_size);
  OmpTeam team(options.n_threads);
  const PackedModel unused{};
  const CpuForward forward(config, unused, *options.kernels, &pools, &team, options.float_activations, nullptr, options.squares);
  memory.scratch_bytes = forward.most_scratch_bytes(n_tokens, n_logit_rows, context_tokens) +
                         kSamplerBytesPerToken * config.vocab_size * options.n_threads;
  memory.page_bytes = pools.page_bytes();
  return memory;
}

Result<std::unique_ptr<Backend>> create_cpu_backend(const ModelConfig& config, const ModelWeights& weights,
                                                    CpuBackendOptions options, const LeanWeights& lean) {
  if (options.n_threads < 1 || options.n_threads > 1024) {
    return invalid_argument(fmt::format("cpu.threads must be >= 1 and <= 1024, got {}", options.n_threads));
  }
  if (options.page_size != 16 && options.page_size != 32) {
    return invalid_argument(fmt::format("cache.page_size_tokens must be 16 or 32, got {}", options.page_size));
  }
  if (options.n_layers < 0 || options.n_layers > config.n_layers)
    return invalid_argument(fmt::format("layers of the processor must be 0 to {}, got {}", config.n_layers, options.n_layers));
  CHECK(options.kernels != nullptr);
  CHECK(lean.weights == nullptr || options.n_layers == 0);
  if (lean.weights != nullptr) options.pack.has_lean_set = false;
  auto backend = std::make_unique<CpuBackend>(config, options_in_force(std::move(options), weights));
  CHECK_OK(backend->load(weights, lean));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace tandem
