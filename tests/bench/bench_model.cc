#include "bench_model.h"

#include <fcntl.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/isa_select.h"
#include "model/weights.h"

namespace tandem {
namespace {

template <typename T>
T take_or_exit(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

}  // namespace

std::unique_ptr<Backend> open_bench_backend(const char* path, int n_threads, bool float_activations, int n_pages,
                                            bool has_lean_set) {
  std::vector<GgufFile> files;
  files.push_back({UniqueFd(::open(path, O_RDONLY | O_CLOEXEC)), path});
  const auto file = take_or_exit(GgufModel::open(std::move(files)));
  const ModelConfig config = take_or_exit(read_model_config(*file));
  const ModelWeights weights = take_or_exit(load_weights(*file, config));
  const CpuInfo cpu = detect_cpu();
  CpuBackendOptions options;
  options.kernels = take_or_exit(select_kernels(cpu, ""));
  options.n_threads = n_threads > 0 ? n_threads : cpu.n_usable_cores;
  options.float_activations = float_activations;
  options.page_size = kBenchPageSize;
  options.pack.has_lean_set = has_lean_set;
  auto backend = take_or_exit(create_cpu_backend(config, weights, options));
  const Status status = backend->reserve_pages(std::vector<int>(config.kv_groups.size(), n_pages));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str()), std::exit(1);
  std::printf("%s: %s\n", path, backend->description().c_str());
  return backend;
}

}  // namespace tandem
