// Speed of whole forward passes: prefill of N tokens in chunks, decode of a batch of B.
//   forward_bench MODEL.gguf [threads [f32|int8 [part of a scene's name [sets]]]]
// `sets`: instead, both weight sets of a Q8_0 model and its plain packing, in turn; ratios to plain.
// Wall time is the figure that counts; process CPU time (of all threads, spinning included) tells what a
// busy machine took away. Medians over repetitions.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "bench_model.h"

using namespace tandem;

namespace {

constexpr int kPages = 4096;

// Runs steps of `batch` sequences, `n_tokens` each per step, from position `first_pos` on; n_steps of them.
struct Load {
  int batch, n_tokens, first_pos, n_steps;
  WeightSet weights = WeightSet::kFull;
};

void run(Backend* backend, const Load& load) {
  static std::vector<PageId> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0);
  const int pages_each = kPages / load.batch;
  StepBatch step;
  std::vector<SampleRequest> requests(static_cast<size_t>(load.batch));
  std::vector<SampleResult> results(static_cast<size_t>(load.batch));
  SamplingParams greedy;
  greedy.temperature = 0;
  for (int s = 0; s < load.n_steps; ++s) {
    step.clear();
    step.weights = load.weights;
    for (int b = 0; b < load.batch; ++b) {
      StepItem item;
      item.first_pos = load.first_pos + s * load.n_tokens;
      item.first_token = static_cast<int>(step.tokens.size());
      item.n_tokens = load.n_tokens;
      item.page_tables.assign(backend->config().kv_groups.size(), pages.data() + b * pages_each);
      step.items.push_back(item);
      for (int i = 0; i < load.n_tokens; ++i) step.tokens.push_back(1000 + 37 * (s + i) % 5000);
      step.logit_rows.push_back(static_cast<int>(step.tokens.size()) - 1);
    }
    if (!backend->forward(step).ok()) std::fprintf(stderr, "forward failed\n"), std::exit(1);
    for (int b = 0; b < load.batch; ++b) {
      requests[static_cast<size_t>(b)].logit_row = b;
      requests[static_cast<size_t>(b)].params = &greedy;
    }
    if (!backend->sample(requests, results).ok()) std::fprintf(stderr, "sample failed\n"), std::exit(1);
  }
}

void measure(Backend* backend, const char* name, const Load& load, int repeats) {
  std::vector<double> wall, cpu;
  const double n = static_cast<double>(load.batch) * load.n_tokens * load.n_steps;
  run(backend, {load.batch, load.n_tokens, load.first_pos, 1});  // warm up
  for (int i = 0; i < repeats; ++i) {
    const int64_t begin = monotonic_us();
    const std::clock_t cpu_begin = std::clock();
    run(backend, load);
    cpu.push_back(n / (static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC));
    wall.push_back(n / (1e-6 * static_cast<double>(monotonic_us() - begin)));
  }
  std::sort(wall.begin(), wall.end());
  std::sort(cpu.begin(), cpu.end());
  std::printf("%-28s median %8.1f  best %8.1f tokens/s   %8.1f tokens per CPU second\n", name,
              wall[wall.size() / 2], wall.back(), cpu[cpu.size() / 2]);
  std::fflush(stdout);
}

double seconds_of(Backend* backend, const Load& load) {
  const int64_t begin = monotonic_us();
  run(backend, load);
  return 1e-6 * static_cast<double>(monotonic_us() - begin);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Plain, full and lean in turn, so that whatever disturbs the machine disturbs all three.
void compare_sets(Backend* plain, Backend* nested, const char* name, Load load) {
  constexpr int kTurns = 7;
  const double n = static_cast<double>(load.batch) * load.n_tokens * load.n_steps;
  std::vector<double> seconds[3], full_ratio, lean_ratio;
  for (int i = 0; i <= kTurns; ++i) {
    load.weights = WeightSet::kFull;
    const double p = seconds_of(plain, load), f = seconds_of(nested, load);
    load.weights = WeightSet::kLean;
    const double l = seconds_of(nested, load);
    if (i == 0) continue;  // warm up
    seconds[0].push_back(p), seconds[1].push_back(f), seconds[2].push_back(l);
    full_ratio.push_back(p / f), lean_ratio.push_back(f / l);
  }
  std::printf("%-28s plain %8.1f  full %8.1f  lean %8.1f tokens/s   full/plain %.3f  lean/full %.3f\n", name, n / median(seconds[0]),
              n / median(seconds[1]), n / median(seconds[2]), median(full_ratio), median(lean_ratio));
  std::fflush(stdout);
}

struct Scene {
  const char* name;
  Load load;
  int repeats;
};
const Scene kScenes[] = {
    {"prefill 512, chunks of 512", {1, 512, 0, 1}, 5},
    {"prefill 512, chunks of 256", {1, 256, 0, 2}, 5},
    {"decode 128 after 512", {1, 1, 512, 128}, 3},
    {"decode 128, batch 4", {4, 1, 128, 64}, 3},
    {"decode 128, batch 16", {16, 1, 128, 32}, 3},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: forward_bench MODEL.gguf [threads [f32|int8 [part of a scene's name [sets]]]]\n");
    return 2;
  }
  const int n_threads = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool is_float = argc > 3 && std::strcmp(argv[3], "f32") == 0;
  const auto backend = open_bench_backend(argv[1], n_threads, is_float, kPages);
  if (argc > 5 && std::strcmp(argv[5], "sets") == 0) {
    const WeightBytes bytes = backend->weight_bytes();
    if (bytes.lean == 0) return std::fprintf(stderr, "%s has no Q8_0 weights\n", argv[1]), 2;
    const auto plain = open_bench_backend(argv[1], n_threads, is_float, kPages, false);
    std::printf("bytes of a step: plain %lld, full %lld, lean %lld\n", static_cast<long long>(plain->weight_bytes().full),
                static_cast<long long>(bytes.full), static_cast<long long>(bytes.lean));
    for (const Scene& scene : kScenes) {
      if (std::strstr(scene.name, argv[4]) == nullptr) continue;
      Load load = scene.load;
      load.n_steps = std::max(1, load.n_steps / 8);
      compare_sets(plain.get(), backend.get(), scene.name, load);
    }
    return 0;
  }
  for (const Scene& scene : kScenes) {
    if (argc > 4 && std::strstr(scene.name, argv[4]) == nullptr) continue;
    measure(backend.get(), scene.name, scene.load, scene.repeats);
  }
  return 0;
}
