#include "worker/model_load.h"

#define XXH_INLINE_ALL  // no library at run time
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>

#include "base/clock.h"
#include "base/file_stamp.h"
#include "base/log.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa_select.h"
#include "model/weights.h"
#include "worker/device_split.h"
#include "worker/kv_budget.h"
#include "worker/memory_plan.h"
#include "worker/split_backend.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {
namespace {

constexpr int kLeastTokens = 2048;  // of a sequence, that a device has room for beside its layers, as config_keys.def promises

// The type that most bytes of the file are in.
std::string main_type(const GgufModel& file, int64_t* weight_bytes) {
  std::map<GgmlType, size_t> bytes;
  for (const GgufTensor& t : file.tensors()) {
    bytes[t.type] += t.n_bytes;
    *weight_bytes += static_cast<int64_t>(t.n_bytes);
  }
  auto most = std::max_element(bytes.begin(), bytes.end(),
                               [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == bytes.end()) return "";
  const QuantTraits* traits = quant_traits(static_cast<uint32_t>(most->first));
  return traits != nullptr ? traits->name : "type " + std::to_string(static_cast<uint32_t>(most->first));
}

std::string served_name(const Config& config, const std::string& file_name) {
  if (!config.model_name.empty()) return config.model_name;
  std::string name = file_name.substr(file_name.rfind('/') + 1);
  if (size_t dot = name.rfind(".gguf"); dot != std::string::npos && dot + 5 == name.size()) name.erase(dot);
  return name;
}

void load_chat_template(const Vocabulary& vocabulary, LoadedModel* model) {
  if (vocabulary.chat_template.empty()) {
    model->info.chat_template_error = "the model file has no chat template; use /v1/completions";
    return;
  }
  auto parsed = ChatTemplate::create(vocabulary.chat_template, vocabulary);
  if (parsed.ok()) {
    model->chat_template = std::move(*parsed);
  } else {
    model->info.chat_template_error = "the model's chat template cannot be used: " + parsed.status().message();
  }
  model->info.has_chat_template = parsed.ok();
}

Result<int> context_in_force(const Config& config, const ModelConfig& model) {
  int64_t wanted = config.model_context_tokens == 0 ? model.context_tokens : config.model_context_tokens;
  if (wanted > model.context_tokens) {
    return invalid_argument("model.context_tokens must be 0 to " + std::to_string(model.context_tokens) +
                            ", what this model was trained for, got " + std::to_string(wanted));
  }
  return static_cast<int>(wanted);
}

}  // namespace

CpuBackendOptions serving_options(const Config& settings, const CpuInfo& cpu, const KernelTable& kernels) {
  CpuBackendOptions options;
  options.kernels = &kernels;
  options.n_threads = settings.cpu_threads > 0 ? static_cast<int>(settings.cpu_threads) : cpu.n_usable_cores;
  options.float_activations = settings.cpu_activations == "f32";
  options.page_size = static_cast<int>(settings.cache_page_size_tokens);
  options.kv_type = settings.cache_element_type == "q8_0" ? KvType::kQ8_0 : KvType::kF16;
  options.pack.has_lean_set = settings.weights_lean == "nested";
  if (!settings.cpu_deterministic && !options.float_activations) {
    if (const auto library = DenseLibrary::open(); library.ok()) options.pack.library = *library;
  }
  return options;
}

namespace {

// Sizes of all parts together in `bytes`. Another state of a file has another stamp, also where a copy in place keeps size
// and mtime.
std::string stamp_of(const std::vector<GgufFile>& files, int64_t* bytes) {
  std::string stamp;
  for (const GgufFile& file : files) {
    struct stat st{};
    if (fstat(file.fd.get(), &st) == 0) *bytes += st.st_size;
    stamp += file_stamp(st) + file_change_stamp(st) + ";";
  }
  return stamp;
}

// With the lean set's cache.
Result<LeanModel> open_lean(LeanSource source, const ModelConfig& config, const Config& settings, const std::string& model_stamp,
                            LoadedModel* model) {
  if (source.files.empty()) return not_found(source.trouble.empty() ? "tandemd passed no file" : source.trouble);
  int64_t bytes = 0;
  const std::string stamp = stamp_of(source.files, &bytes);
  if (stamp == model_stamp)
    return invalid_argument("weights.lean is " + settings.weights_lean + ", the model's own file; name another, or \"nested\"");
  CHECK_ASSIGN(LeanModel lean, open_lean_model(std::move(source.files), model->file->name(), config, model->tokenizer->vocabulary(),
                                               static_cast<int>(settings.model_context_tokens)));
  model->lean_cache = std::make_unique<PackCache>(std::move(source.cache), stamp);
  return lean;
}

// Adds it to the plan, or says with the arithmetic why it does not fit.
Status plan_lean(const ModelWeights& weights, const KernelTable& kernels, const PackOptions& pack, ipc::MemoryPlan* plan) {
  CHECK_ASSIGN(const int64_t bytes, PackedModel::bytes_needed(weights, kernels, pack));
  ipc::MemoryPlan both = *plan;
  both.lean_bytes = bytes;
  CHECK_OK(check_memory_plan(both));
  *plan = both;
  return ok_status();
}

Status load_backend(const ModelConfig& config, const Config& settings, const HostFacts& host, int64_t other_bytes,
                    LeanSource lean_source, const std::string& model_stamp, const LoadProgress& progress, LoadedModel* model) {
  CHECK_ASSIGN(const KernelTable* kernels, select_kernels(host.cpu, settings.cpu_force_isa));
  CHECK_ASSIGN(ModelWeights weights, load_weights(*model->file, config));
  CpuBackendOptions options = serving_options(settings, host.cpu, *kernels);
  if (!settings.cpu_deterministic && options.pack.library == nullptr)
    log_warn("no library for dense weights", {{"reason", DenseLibrary::open().status().message()}});
  options.touch_pools_later = true;
  options.pack.cache = model->pack_cache.get();
  options.pack.on_progress = [&](float fraction) { progress("repacking weights", fraction); };
  options.pack.on_source_read = [&](const uint8_t* data, size_t size) { model->file->release_pages(data, size); };
  LeanModel lean;
  LeanWeights lean_weights;
  lean_weights.pack.has_lean_set = false;
  lean_weights.pack.library = options.pack.library;
  lean_weights.pack.on_progress = [&](float fraction) { progress("repacking lean weights", fraction); };
  lean_weights.pack.on_source_read = [&](const uint8_t* data, size_t size) { lean.file->release_pages(data, size); };
  const auto refuse = [&](const Status& status) {  // which file is said
    model->no_lean_file = status.message(), model->lean_cache.reset(), model->info.memory.lean_bytes = 0;
  };
  lean_weights.on_refused = [&](const Status& status) { refuse({status.code(), lean.file->name() + ": " + status.message()}); };
  if (config_has_lean_file(settings)) {
    auto opened = open_lean(std::move(lean_source), config, settings, model_stamp, model);
    if (opened.ok()) lean = std::move(*opened), lean.file->release_pages();
    else refuse(opened.status());
  }
  model->file->release_pages();  // read again by the packing, and then gone again
  const MemoryPlanInput plan{config, weights, options, settings, host, model->info.context_tokens, other_bytes};
  CHECK_ASSIGN(model->info.memory, plan_memory(plan));
  CHECK_OK(check_memory_plan(model->info.memory));  // before any of it is taken
  if (lean.file) {
    if (Status fits = plan_lean(lean.weights, *kernels, lean_weights.pack, &model->info.memory); !fits.ok())
      lean_weights.on_refused(fits);
    else lean_weights.weights = &lean.weights, lean_weights.pack.cache = model->lean_cache.get();
  }
  const int64_t begin_us = monotonic_us();
  auto backend = create_cpu_backend(config, weights, options, lean_weights);
  if (!backend.ok()) {  // which tensor is said; which file only this room knows
    return {backend.status().code(), model->file->name() + ": " + backend.status().message()};
  }
  model->backend = std::move(backend).value();
  model->n_threads = options.n_threads;
  const int64_t ms = (monotonic_us() - begin_us) / 1000;
  if (model->pack_cache->is_hit()) {
    log_info("weights mapped from the cache", {{"ms", ms}, {"huge_pages", model->pack_cache->is_huge()}});
  } else {
    log_info("weights repacked", {{"ms", ms}, {"cache", model->pack_cache->miss_reason()}});
  }
  if (model->lean_cache) {
    model->info.lean_file = lean.file->name();
    model->engine_options.lean_id = model->lean_cache->file_id()[0];
    log_info("lean weights loaded", {{"file", lean.file->name()}, {"cache", model->lean_cache->is_hit() ? "mapped" : model->lean_cache->miss_reason()}});
  } else if (config_has_lean_file(settings)) {
    log_warn("weights.lean does not serve", {{"reason", model->no_lean_file}});
  }
  model->file->release_pages();
  model->info.device = "cpu";
  model->info.isa = kernels->isa;
  return ok_status();
}

// A device that lacks memory is no fault of configuration or model: the worker ends as one whose device is lost, and
// the processor takes over.
Status device_status(const Status& status) {
  return status.code() == StatusCode::kExhausted ? unavailable(status.message()) : status;
}

// The layers that the device has no room for, on the processor: its kernels, its share of the memory.
Status load_first_layers(const ModelConfig& config, const ModelWeights& weights, const Config& settings, const HostFacts& host,
                         const DeviceSplit& split, const LoadProgress& progress, LoadedModel* model, std::unique_ptr<Backend>* front) {
  if (settings.cpu_activations == "f32")  // its pages would be others than the device's
    return invalid_argument("cpu.activations is \"f32\" and " + std::to_string(split.first_layer) + " of " + std::to_string(config.n_layers) +
                            " layers do not fit the device: set it to \"q8\", or gpu.device to \"none\"");
  CHECK_ASSIGN(const KernelTable* kernels, select_kernels(host.cpu, settings.cpu_force_isa));
  CpuBackendOptions options = serving_options(settings, host.cpu, *kernels);
  options.pack.library = nullptr;
  options.n_layers = split.first_layer;
  options.pack.cache = model->pack_cache.get();
  options.pack.on_progress = [&](float fraction) { progress("repacking weights", fraction); };
  const int n_rows = static_cast<int>(settings.batch_max_batch_size);
  CHECK_ASSIGN(const CpuMemory memory,
               plan_cpu_memory(config, weights, options, n_rows + static_cast<int>(settings.batch_prefill_chunk_tokens), n_rows,
                               model->info.context_tokens));
  model->info.memory.weights_bytes += memory.weights_bytes;
  model->info.memory.scratch_bytes += memory.scratch_bytes;
  CHECK_OK(check_memory_plan(model->info.memory));  // before any of it is taken
  model->front_page_bytes = memory.page_bytes;
  model->info.isa = kernels->isa;
  CHECK_ASSIGN(*front, create_cpu_backend(config, weights, options));
  log_warn("the model is larger than the device: its first layers stay on the processor",
           {{"device_layers", config.n_layers - split.first_layer}, {"processor_layers", split.first_layer}, {"isa", kernels->isa},
            {"reason", split.why.empty() ? "gpu.layers = " + settings.gpu_layers : split.why}});
  return ok_status();
}

Status load_gpu_backend(const ModelConfig& config, const Config& settings, const HostFacts& host, const GpuFacts& gpu,
                        int64_t other_bytes, const LoadProgress& progress, LoadedModel* model) {
  CHECK_ASSIGN(ModelWeights weights, load_weights(*model->file, config));
  GpuOptions options;
  options.memory_budget_bytes = settings.gpu_memory_budget_bytes;
  options.page_size = static_cast<int>(settings.cache_page_size_tokens);
  options.kv_type = settings.cache_element_type == "q8_0" ? KvType::kQ8_0 : KvType::kF16;
  options.max_batch_size = static_cast<int>(settings.batch_max_batch_size);
  options.context_tokens = model->info.context_tokens;
  options.n_threads = settings.cpu_threads > 0 ? static_cast<int>(settings.cpu_threads) : host.cpu.n_usable_cores;
  options.has_lean_set = settings.weights_lean == "nested";
  options.float_activations = settings.cpu_activations == "f32";
  options.on_progress = [&](float fraction) { progress("uploading weights", fraction); };
  if (Status status = check_card(config_device_workers(settings), settings.gpu_memory_budget_bytes, gpu); !status.ok()) return device_status(status);
  DeviceSplitInput split_input{config, weights, gpu, options};
  split_input.n_layers = settings.gpu_layers == "auto" ? 0 : std::atoi(settings.gpu_layers.c_str());  // config_validate() has looked at it
  split_input.kv_pool_bytes = settings.cache_kv_pool_bytes;
  split_input.least_tokens = std::min(options.context_tokens, std::max(kLeastTokens, static_cast<int>(settings.batch_prefill_chunk_tokens) + 1));
  auto split = choose_device_layers(split_input);
  if (!split.ok()) return device_status(split.status());
  model->gpu_memory = split->memory;
  options.first_layer = split->first_layer;
  model->info.device_layers = config.n_layers - split->first_layer;
  model->info.memory = plan_host_memory(settings, host, other_bytes);
  const int64_t begin_us = monotonic_us();
  std::unique_ptr<Backend> front;
  if (split->first_layer > 0) CHECK_OK(load_first_layers(config, weights, settings, host, *split, progress, model, &front));
  CHECK_OK(check_memory_plan(model->info.memory));
  auto backend = create_gpu_backend(config, weights, gpu, options);
  if (!backend.ok()) return device_status({backend.status().code(), model->file->name() + ": " + backend.status().message()});
  model->backend = std::move(backend).value();
  if (front) model->backend = create_split_backend(config, std::move(front), std::move(model->backend));
  log_info("weights uploaded", {{"ms", (monotonic_us() - begin_us) / 1000},
                                {"device", gpu.name},
                                {"driver", gpu.driver},
                                {"layers", model->info.device_layers},
                                {"budget_bytes", split->memory.budget_bytes},
                                {"weights_bytes", split->memory.weights_bytes},
                                {"workspace_bytes", split->memory.workspace_bytes}});
  model->file->release_pages();
  model->info.device = "gpu";
  model->info.device_name = gpu.name;
  model->info.isa = "sm_" + std::to_string(gpu.sm) + (split->first_layer > 0 ? " " + model->info.isa : "");
  return ok_status();
}

Batching batching_named(const std::string& name) {
  if (name == "dynamic") return Batching::kDynamic;
  if (name == "static") return Batching::kStatic;
  return name == "static-padded" ? Batching::kStaticPadded : Batching::kContinuous;
}

// All that K/V depend on beside the tokens.
uint64_t fingerprint(const std::string& model_stamp, const Config& settings, const HostFacts& host,
                     const ipc::ModelInfo& info) {
  std::string all = model_stamp + "|" + host.program_stamp + "|" + TANDEM_VERSION + "|" + info.isa + "|" +
                    settings.cpu_activations + "|" + (settings.cpu_deterministic ? "" : "library|") + settings.cache_element_type + "|" + std::to_string(info.context_tokens);
  return XXH3_64bits(all.data(), all.size());
}

// The pool in a memfd that outlives this process. What is not committed yet is committed here and now, so that a
// lack of memory is an answer at start and no death later; by all cores, since clearing 1.4 GB takes one 0.8 s.
Status open_host_pool(const HostPoolShape& shape, const HostPoolAccess& access, int n_threads,
                      const LoadProgress& progress, LoadedModel* model) {
  CHECK_ASSIGN(const int64_t bytes, HostPool::bytes_needed(shape));
  CHECK_OK(access.grow(bytes));
  CHECK_ASSIGN(model->host_pool, HostPool::open(access.fd, shape, access.generation));
  if (!model->host_pool->is_committed()) {
    const std::atomic<bool> never{false};
    CHECK_OK(model->host_pool->touch(n_threads, never, [&](float done) { progress("committing the KV pool", done); }));
  }
  std::vector<uint8_t*> memory;
  for (size_t g = 0; g < shape.n_pages.size(); ++g) memory.push_back(model->host_pool->group_memory(static_cast<int>(g)));
  model->engine_options.ledger = model->host_pool.get();
  if (!access.lent_fds.empty()) {
    model->lent_pools = std::make_unique<LentPools>(access.lent_fds, model->host_pool.get());
    model->engine_options.source = model->lent_pools.get();
  }
  return model->backend->place_pages(shape.n_pages, memory);
}

// Pages in the device's memory, what weights and workspace leave of it; the swap tier in the host's.
Status reserve_device_pool(const ModelConfig& config, const Config& settings, const HostFacts& host, const HostPoolAccess& access,
                           LoadedModel* model, KvBudget* budget) {
  const std::vector<int64_t> whole = model->backend->page_bytes(), &own = model->gpu_memory.page_bytes;
  const auto sum = [](const std::vector<int64_t>& v) { return static_cast<double>(std::accumulate(v.begin(), v.end(), int64_t{0})); };
  const double share = sum(own) / sum(whole);
  const int64_t available = model->gpu_memory.kv_bytes();
  if (static_cast<double>(settings.cache_kv_pool_bytes) * share > static_cast<double>(available)) {
    return unavailable("cache.kv_pool_bytes is " + std::to_string(settings.cache_kv_pool_bytes) + ", weights and workspace leave " +
                       std::to_string(static_cast<int64_t>(static_cast<double>(available) / share)) + " of the device's memory");
  }
  HostFacts device = host;
  device.memory_bytes = available * 4;  // of which plan_pool() takes a quarter at most
  Config unbounded = settings;
  unbounded.workers_memory_budget_bytes = 0;
  CHECK_ASSIGN(*budget, plan_pool(config, unbounded, device, model->info.context_tokens, own, share));
  if (!model->front_page_bytes.empty()) {  // the processor's layers have as many pages
    budget->total_bytes = budget->swap_bytes = 0;
    for (size_t g = 0; g < whole.size(); ++g) {
      budget->total_bytes += budget->n_pages[g] * whole[g];
      budget->swap_bytes += budget->n_swap_pages[g] * whole[g];
      model->info.memory.kv_pool_bytes += budget->n_pages[g] * model->front_page_bytes[g];
    }
    CHECK_OK(check_memory_plan(model->info.memory));
  }
  if (Status status = model->backend->reserve_tiers(budget->n_pages, budget->n_swap_pages); !status.ok()) return device_status(status);
  if (!access.lent_fds.empty()) {
    HostPoolShape shape;  // what lenders' pages must be like
    shape.page_size = static_cast<int>(settings.cache_page_size_tokens);
    shape.vocab_size = config.vocab_size;
    shape.page_bytes = model->backend->page_bytes();
    Backend* backend = model->backend.get();
    model->lent_pools = std::make_unique<LentPools>(access.lent_fds, std::move(shape), [backend](int group, PageId to, const auto& fill) {
      return backend->import_page(group, to, fill);
    });
    model->engine_options.source = model->lent_pools.get();
  }
  return ok_status();
}

Status reserve_pool(const ModelConfig& config, const Config& settings, const HostFacts& host,
                    const std::string& model_stamp, const HostPoolAccess& pool, const LoadProgress& progress,
                    LoadedModel* model) {
  const std::vector<int64_t> page_bytes = model->backend->page_bytes();
  KvBudget budget;
  const bool is_on_device = model->info.device == "gpu";
  if (is_on_device) {
    CHECK_OK(reserve_device_pool(config, settings, host, pool, model, &budget));
  } else {
    CHECK_ASSIGN(budget, plan_pool(config, settings, host, model->info.context_tokens, page_bytes));
  }
  // One piece of memory for both: attention reads pages of the swap tier where they are.
  std::vector<int> n_all = budget.n_pages;
  for (size_t g = 0; g < n_all.size(); ++g) n_all[g] += budget.n_swap_pages[g];
  if (is_on_device) {
    // There already.
  } else if (pool.fd >= 0) {
    HostPoolShape shape;
    shape.fingerprint = fingerprint(model_stamp, settings, host, model->info);
    shape.page_size = static_cast<int>(settings.cache_page_size_tokens);
    shape.vocab_size = config.vocab_size;
    shape.page_bytes = page_bytes;
    shape.n_pages = n_all;
    CHECK_OK(open_host_pool(shape, pool, host.cpu.n_usable_cores, progress, model));
  } else {
    CHECK_OK(model->backend->reserve_pages(n_all));
  }
  EngineOptions& o = model->engine_options;
  o.max_batch_size = static_cast<int>(settings.batch_max_batch_size);
  o.prefill_chunk_tokens = static_cast<int>(settings.batch_prefill_chunk_tokens);
  o.page_size = static_cast<int>(settings.cache_page_size_tokens);
  o.context_tokens = model->info.context_tokens;
  o.ageing_us = settings.limits_ageing_ms * 1000;
  o.n_pages = budget.n_pages;
  o.n_swap_pages = budget.n_swap_pages;
  o.max_cached_pages = budget.max_cached_pages;
  o.target_gap_us = settings.batch_target_inter_token_latency_ms * 1000;
  o.batching = batching_named(settings.batch_batching);
  o.form_us = settings.batch_form_ms * 1000;
  o.adapts_batch_limit = settings.batch_adaptive_limit;
  o.has_prefix_cache = settings.cache_prefix;
  model->info.kv_pool_bytes = budget.total_bytes;
  model->info.swap_pool_bytes = budget.swap_bytes;
  model->info.max_batch_size = o.max_batch_size;
  for (int64_t bytes : page_bytes) model->info.kv_bytes_per_token += bytes / o.page_size;
  return ok_status();
}

Status check_vocabulary_size(const ModelConfig& config, const Tokenizer& tokenizer, const std::string& file) {
  if (config.vocab_size == tokenizer.n_tokens()) return ok_status();
  return invalid_argument(file + ": tokenizer.ggml.tokens has " + std::to_string(tokenizer.n_tokens()) +
                          " tokens, the embedding has " + std::to_string(config.vocab_size) +
                          " rows; they must be equal");
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> load_model(std::vector<GgufFile> files, PackCache::Files cache, LeanSource lean,
                                                const HostPoolAccess& pool,
                                                const Config& settings, const HostFacts& host, const GpuFacts* gpu,
                                                int64_t other_bytes, const LoadProgress& progress) {
  auto model = std::make_unique<LoadedModel>();
  ipc::ModelInfo& info = model->info;
  progress("reading model", 0);
  const std::string stamp = stamp_of(files, &info.file_bytes);
  model->pack_cache = std::make_unique<PackCache>(std::move(cache), stamp);
  CHECK_ASSIGN(model->file, GgufModel::open(std::move(files)));
  CHECK_ASSIGN(ModelConfig config, read_model_config(*model->file, static_cast<int>(settings.model_context_tokens)));
  CHECK_ASSIGN(Vocabulary vocabulary, read_vocabulary(*model->file));
  load_chat_template(vocabulary, model.get());
  CHECK_ASSIGN(model->tokenizer, Tokenizer::create(std::move(vocabulary)));
  CHECK_OK(check_vocabulary_size(config, *model->tokenizer, model->file->name()));
  CHECK_ASSIGN(info.context_tokens, context_in_force(settings, config));
  info.name = served_name(settings, model->file->name());
  info.architecture = config.architecture;
  info.quantization = main_type(*model->file, &info.weight_bytes);
  info.n_parameters = config.n_parameters;
  info.vocab_size = config.vocab_size;
  info.n_layers = config.n_layers;
  if (gpu != nullptr) {
    CHECK_OK(load_gpu_backend(config, settings, host, *gpu, other_bytes, progress, model.get()));
  } else {
    CHECK_OK(load_backend(config, settings, host, other_bytes, std::move(lean), stamp, progress, model.get()));
  }
  progress("warming up", 0);
  CHECK_OK(reserve_pool(config, settings, host, stamp, pool, progress, model.get()));
  return model;
}

Status run_canary(Engine* engine, const LoadedModel& model, const TakeEvents& take_events) {
  const int n_prompt = std::min(model.info.context_tokens - 2, 17);  // a page and one more: both kinds of a chunk's end
  EngineRequest request = startup_request(startup_prompt(n_prompt, 1, model.info.vocab_size), 2);
  request.n_top_logprobs = 0;
  return run_startup_text(engine, std::move(request), take_events, "the model cannot compute a short text at start-up");
}

}  // namespace tandem
