// Speed of whole forward passes: prefill of N tokens in chunks, decode of a batch of B.
//   forward_bench MODEL.gguf [threads] [f32]
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
    std::fprintf(stderr, "usage: forward_bench MODEL.gguf [threads [f32|int8 [part of a scene's name]]]\n");
    return 2;
  }
  const int n_threads = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool is_float = argc > 3 && std::strcmp(argv[3], "f32") == 0;
  const auto backend = open_bench_backend(argv[1], n_threads, is_float, kPages);
  for (const Scene& scene : kScenes) {
    if (argc > 4 && std::strstr(scene.name, argv[4]) == nullptr) continue;
    measure(backend.get(), scene.name, scene.load, scene.repeats);
  }
  return 0;
}
