// What a prompt costs beside running streams: the time of steps with a chunk of C tokens of a prompt, with the next
// token of S streams, and with both; and what follows for a prompt of P tokens when steps may take so many times as
// long as the streams' own.
//   mixed_bench MODEL.gguf [THREADS [STREAMS [DEPTH [PROMPT]]]]     default 8 streams behind 400 tokens, 6,000 tokens
// With d = time that the streams add to a step, D = time of a step of theirs alone, a prompt whose steps take r * D
// needs r * D / (r * D - d) times as long as alone, if small chunks cost no more per token than large ones.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "bench_model.h"

using namespace tandem;

namespace {

constexpr int kRepeats = 9;
constexpr int kWholeChunk = 256;
const int kChunks[] = {8, 16, 24, 32, 48, 64, 96, 128, kWholeChunk};

struct Scene {
  int n_streams, depth, n_prompt;
};

struct Step {
  int n_streams, chunk, first_pos;  // chunk 0: streams alone
};

class Bench {
 public:
  Bench(Backend* backend, const Scene& scene)
      : backend_(backend), scene_(scene), pages_(static_cast<size_t>(n_pages(scene))) {
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  static int stream_pages(const Scene& s) { return s.depth / kBenchPageSize + 2; }
  static int n_pages(const Scene& s) {
    return s.n_streams * stream_pages(s) + (s.n_prompt + kWholeChunk) / kBenchPageSize + 2;
  }

  double run_ms(const Step& step) {
    batch_.clear();
    const int each = stream_pages(scene_);
    for (int i = 0; i < step.n_streams; ++i) add(1, scene_.depth, pages_.data() + i * each, true);
    if (step.chunk > 0) add(step.chunk, step.first_pos, pages_.data() + scene_.n_streams * each, false);
    const int64_t begin = monotonic_us();
    check(backend_->forward(batch_));
    sample();
    return 1e-3 * static_cast<double>(monotonic_us() - begin);
  }

 private:
  void add(int n_tokens, int first_pos, const PageId* pages, bool is_decode) {
    StepItem item;
    item.first_pos = first_pos;
    item.first_token = static_cast<int>(batch_.tokens.size());
    item.n_tokens = n_tokens;
    item.is_decode = is_decode;
    item.page_tables.assign(backend_->config().kv_groups.size(), pages);
    batch_.items.push_back(item);
    for (int i = 0; i < n_tokens; ++i) batch_.tokens.push_back(1000 + 37 * (first_pos + i) % 5000);
    if (is_decode) batch_.logit_rows.push_back(static_cast<int>(batch_.tokens.size()) - 1);
  }

  void sample() {
    static const SamplingParams greedy = [] {
      SamplingParams p;
      p.temperature = 0;
      return p;
    }();
    requests_.resize(batch_.logit_rows.size());
    results_.resize(requests_.size());
    for (size_t i = 0; i < requests_.size(); ++i) {
      requests_[i].logit_row = static_cast<int>(i);
      requests_[i].params = &greedy;
    }
    if (!requests_.empty()) check(backend_->sample(requests_, results_));
  }

  static void check(const Status& status) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str()), std::exit(1);
  }

  Backend* const backend_;
  const Scene scene_;
  std::vector<PageId> pages_;
  StepBatch batch_;
  std::vector<SampleRequest> requests_;
  std::vector<SampleResult> results_;
};

// Medians, the steps taking turns.
std::vector<double> medians(Bench* bench, const std::vector<Step>& steps) {
  std::vector<std::vector<double>> ms(steps.size());
  for (int r = 0; r <= kRepeats; ++r) {
    for (size_t i = 0; i < steps.size(); ++i) {
      const double took = bench->run_ms(steps[i]);
      if (r > 0) ms[i].push_back(took);  // the first round only warms up
    }
  }
  std::vector<double> out;
  for (auto& m : ms) {
    std::sort(m.begin(), m.end());
    out.push_back(m[m.size() / 2]);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: mixed_bench MODEL.gguf [THREADS [STREAMS [DEPTH [PROMPT]]]]\n");
    return 2;
  }
  const auto number = [&](int i, int otherwise) { return argc > i ? std::max(1, std::atoi(argv[i])) : otherwise; };
  const Scene scene{number(3, 8), number(4, 400), number(5, 6000)};
  const auto backend = open_bench_backend(argv[1], argc > 2 ? std::atoi(argv[2]) : 0, false, Bench::n_pages(scene));
  Bench bench(backend.get(), scene);
  const int middle = scene.n_prompt / 2;

  std::vector<Step> steps = {{scene.n_streams, 0, 0}};
  for (int chunk : kChunks) {
    for (int first_pos : {0, middle}) {
      steps.push_back({0, chunk, first_pos});
      steps.push_back({scene.n_streams, chunk, first_pos});
    }
  }
  const std::vector<double> ms = medians(&bench, steps);
  const double alone = ms[0];
  std::printf("%d streams behind %d tokens: %.2f ms a step alone\n\n", scene.n_streams, scene.depth, alone);
  std::printf("chunk   from 0: ms, with the streams, they add   from %d: ms, with the streams, they add\n", middle);
  // Half-way costs what the whole prompt costs on average: attention grows linearly.
  const double whole = ms[ms.size() - 2] / kWholeChunk;
  for (size_t i = 0; i < std::size(kChunks); ++i) {
    const double* m = &ms[1 + 4 * i];
    std::printf("%5d   %10.2f %10.2f %10.2f   %10.2f %10.2f %10.2f   step %.2f x the streams' own, prompt %.2f x as long as in chunks of %d\n",
                kChunks[i], m[0], m[1], m[1] - m[0], m[2], m[3], m[3] - m[2], m[3] / alone, m[3] / kChunks[i] / whole, kWholeChunk);
  }
  return 0;
}
