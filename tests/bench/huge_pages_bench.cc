// What huge pages are worth: decode with weights in private memory, in the mapped cache file, and in the same file
// behind small pages; and with the KV pool behind huge pages, small ones, and in a memfd, where a worker has it.
//   huge_pages_bench MODEL.gguf THREADS [CONTEXT] [STEPS]
// All variants live in one process and take turns; the logits of all of them are compared bit by bit first, behind a short
// prompt. Then STEPS are decoded per turn behind CONTEXT tokens; K/V between are zeros, which are read as fast.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/process_memory.h"
#include "cpu/cpu_backend.h"
#include "cpu/isa_select.h"
#include "model/weights.h"

using namespace tandem;

namespace {

constexpr int kPageSize = 16, kRounds = 5;

template <typename T>
T take_or_exit(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().message().c_str());
  std::exit(1);
}

void require_ok(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str()), std::exit(1);
}

struct Variant {
  const char* name;
  bool is_file, has_small_weight_pages, has_small_kv_pages, is_kv_memfd;
  std::unique_ptr<Backend> backend;
  int64_t huge_bytes = 0;
  int next_pos = 0;
  std::vector<double> rates;
};

struct Bench {
  ModelConfig config;
  ModelWeights weights;
  CpuBackendOptions options;
  int n_pages = 0;
  std::vector<PageId> pages;
  std::string cache_path;

  int64_t huge_bytes() const {
    const ProcessMemory m = take_or_exit(read_process_memory());
    return m.private_huge_bytes + m.file_huge_bytes;
  }

  // As a worker maps its pool: one file, a wish for huge pages, all of it touched.
  std::vector<uint8_t*> map_memfd(const std::vector<int64_t>& page_bytes) const {
    std::vector<uint8_t*> memory;
    for (int64_t bytes : page_bytes) {
      const size_t n = static_cast<size_t>(bytes) * static_cast<size_t>(n_pages);
      const UniqueFd fd(memfd_create("huge_pages_bench", MFD_CLOEXEC));
      void* at = ftruncate(fd.get(), static_cast<off_t>(n)) == 0
                     ? mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0)
                     : MAP_FAILED;
      if (at == MAP_FAILED) std::perror("memfd"), std::exit(1);
      madvise(at, n, MADV_HUGEPAGE);
      std::memset(at, 0, n);
      memory.push_back(static_cast<uint8_t*>(at));
    }
    return memory;
  }

  void open(Variant* v) {
    const int64_t before = huge_bytes();
    PackCache::Files files;
    if (v->is_file) files.existing.reset(::open(cache_path.c_str(), O_RDONLY | O_CLOEXEC));
    files.is_shared = true;  // never a private copy
    PackCache cache(std::move(files), "bench");
    CpuBackendOptions o = options;
    o.pack.cache = &cache;
    prctl(PR_SET_THP_DISABLE, v->has_small_weight_pages, 0, 0, 0);
    v->backend = take_or_exit(create_cpu_backend(config, weights, o));
    if (v->is_file != cache.is_hit()) std::fprintf(stderr, "cache: %s\n", cache.miss_reason().c_str()), std::exit(1);
    v->huge_bytes = huge_bytes() - before;
    prctl(PR_SET_THP_DISABLE, v->has_small_kv_pages, 0, 0, 0);
    const std::vector<int> counts(config.kv_groups.size(), n_pages);
    require_ok(v->is_kv_memfd ? v->backend->place_pages(counts, map_memfd(v->backend->page_bytes()))
                              : v->backend->reserve_pages(counts));
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
  }

  void step(Variant* v, int n_tokens) {
    StepBatch batch;
    StepItem item;
    item.first_pos = v->next_pos;
    item.first_token = 0;
    item.n_tokens = n_tokens;
    item.page_tables.assign(config.kv_groups.size(), pages.data());
    batch.items.push_back(item);
    for (int i = 0; i < n_tokens; ++i) batch.tokens.push_back(1000 + 37 * (v->next_pos + i) % 5000);
    batch.logit_rows.push_back(n_tokens - 1);
    require_ok(v->backend->forward(batch));
    v->next_pos += n_tokens;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: huge_pages_bench MODEL.gguf THREADS [CONTEXT] [STEPS]\n");
    return 2;
  }
  const int context = argc > 3 ? std::atoi(argv[3]) : 256, n_steps = argc > 4 ? std::atoi(argv[4]) : 32;
  Bench bench;
  std::vector<GgufFile> files;
  files.push_back({UniqueFd(::open(argv[1], O_RDONLY | O_CLOEXEC)), argv[1]});
  const auto file = take_or_exit(GgufModel::open(std::move(files)));
  bench.config = take_or_exit(read_model_config(*file));
  bench.weights = take_or_exit(load_weights(*file, bench.config));
  bench.options.kernels = take_or_exit(select_kernels(detect_cpu(), ""));
  bench.options.n_threads = std::atoi(argv[2]);
  bench.n_pages = (context + (kRounds + 1) * n_steps) / kPageSize + 2;
  bench.pages.resize(static_cast<size_t>(bench.n_pages));
  std::iota(bench.pages.begin(), bench.pages.end(), 0);
  const char* folder = std::getenv("TMPDIR");
  bench.cache_path = std::string(folder ? folder : "/tmp") + "/huge_pages_bench.weights";
  ::unlink(bench.cache_path.c_str());
  {  // the file
    PackCache::Files fresh;
    fresh.fresh.reset(::open(bench.cache_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    PackCache cache(std::move(fresh), "bench");
    CpuBackendOptions o = bench.options;
    o.pack.cache = &cache;
    const auto backend = take_or_exit(create_cpu_backend(bench.config, bench.weights, o));
    const std::atomic<bool> stop{false};
    require_ok(cache.store(stop));
  }
  Variant variants[] = {{"weights in memory, huge pages", false, false, false, false, {}, 0, 0, {}},
                        {"weights in the file, huge pages", true, false, false, false, {}, 0, 0, {}},
                        {"weights in the file, small pages", true, true, false, false, {}, 0, 0, {}},
                        {"KV pool in small pages", false, false, true, false, {}, 0, 0, {}},
                        {"KV pool in a memfd", false, false, false, true, {}, 0, 0, {}}};
  std::vector<float> expected;
  for (Variant& v : variants) {
    bench.open(&v);
    bench.step(&v, std::min(256, context));
    const std::span<const float> logits = v.backend->logits(0);
    if (expected.empty()) expected.assign(logits.begin(), logits.end());
    if (std::memcmp(expected.data(), logits.data(), logits.size_bytes()) != 0)
      return std::fprintf(stderr, "%s: other logits\n", v.name), 1;
    v.next_pos = context;
  }
  for (int round = 0; round <= kRounds; ++round) {
    for (Variant& v : variants) {
      const int64_t begin = monotonic_us();
      for (int i = 0; i < n_steps; ++i) bench.step(&v, 1);
      if (round > 0) v.rates.push_back(n_steps * 1e6 / static_cast<double>(monotonic_us() - begin));  // 0: warm up
    }
  }
  double first = 0;
  for (Variant& v : variants) {
    std::sort(v.rates.begin(), v.rates.end());
    const double median = v.rates[v.rates.size() / 2];
    if (first == 0) first = median;
    std::printf("%-34s %7.1f tokens/s  %.3f   %.0f MB of the weights in huge pages\n", v.name, median, median / first,
                static_cast<double>(v.huge_bytes) / 1e6);
  }
  ::unlink(bench.cache_path.c_str());
  return 0;
}
