// usage: gpu_bench [--shape smollm2|1b|7b|8b] [--predict]
//
// On a card: GB/s of each kernel and its share of the card's own copy bandwidth, then tokens/s of a whole decode step (a
// graph of the launches of all layers, random weights) at batch 1, 4, 16 and 64. Without one: says what is missing and
// prints the prediction. Times are medians of 20 runs after 3, by events on the stream.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/random_blocks.h"
#include "kernels/tile_layout.h"
#include "tests/bench/gpu/decode_step.h"
#include "tests/bench/gpu/shapes.h"

namespace tandem::bench {
namespace {

double median_ms(cudaStream_t stream, const std::function<void()>& launch) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 23; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    launch();
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "run");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= 3) times.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

// GB/s that a copy inside the device reads and writes together.
double copy_gb_per_s(cudaStream_t stream) {
  constexpr size_t kBytes = size_t{256} << 20;
  const Buffer from(kBytes), to(kBytes);
  const double ms = median_ms(stream, [&] { check(cudaMemcpyAsync(to.get<char>(), from.get<char>(), kBytes, cudaMemcpyDeviceToDevice, stream), "copy"); });
  return 2 * static_cast<double>(kBytes) / ms / 1e6;
}

void print_products(cudaStream_t stream, double card) {
  constexpr int64_t N = 14336, K = 4096;
  const struct {
    DotPath path;
    int M;
  } runs[] = {{DotPath::kDp4a, 1}, {DotPath::kDp4a, 4}, {DotPath::kDp4a, 8}, {DotPath::kMma, 1},
              {DotPath::kMma, 8},  {DotPath::kMma, 16}, {DotPath::kMma, 64}, {DotPath::kFloat, 1}};
  fmt::print("\nproducts [{} x {}], GB/s of weights (share of the copy's)\n{:8}", N, K, "");
  for (const auto& r : runs) fmt::print("{:>16}", fmt::format("{} M={}", r.path == DotPath::kDp4a ? "dp4a" : r.path == DotPath::kMma ? "mma" : "float", r.M));
  fmt::print("\n");
  for (const TileShape& shape : kTileShapes) {
    const Weights w(shape.type, N, K, 5);
    fmt::print("{:8}", quant_traits(static_cast<uint32_t>(shape.type))->name);
    for (const auto& r : runs) {
      if (!matvec_serves(shape.type, r.path)) {
        fmt::print("{:>16}", "-");
        continue;
      }
      const ActBuffers acts(r.M, K), out(r.M, N);
      MatvecParams p;
      p.acts = acts.acts();
      p.acts.sum_squares = nullptr;
      p.n_rows = r.M;
      p.n_products = 1;
      p.products[0] = {w.matrix(), nullptr, out.acts().floats, N};
      const double ms = median_ms(stream, [&] { check(launch_matvec(p, r.path, stream), "product"); });
      const double gb = static_cast<double>(w.n_bytes()) / ms / 1e6;
      fmt::print("{:>16}", fmt::format("{:.0f} ({:.0f} %)", gb, 100 * gb / card));
    }
    fmt::print("\n");
  }
}

void print_steps(cudaStream_t stream, const Shape& s, double card) {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "memory");
  constexpr int kContext = 2048;
  fmt::print("\ndecode of {}, {} tokens of context\n{:>8}{:>12}{:>12}{:>12}{:>14}\n", s.name, kContext, "batch", "ms a step", "tokens/s", "GB/s (%)", "launches");
  for (int batch : {1, 4, 16, 64}) {
    const int64_t bytes = weight_bytes(s) + batch * kv_bytes(s, kContext);
    if (static_cast<size_t>(bytes) * 11 / 10 > free) {
      fmt::print("{:8}  needs {} MB, {} MB are free\n", batch, bytes >> 20, free >> 20);
      continue;
    }
    DecodeStep step(s, batch, kContext, stream);
    const double ms = median_ms(stream, [&] { step.run(); });
    const double gb = static_cast<double>(bytes) / ms / 1e6;
    fmt::print("{:8}{:12.3f}{:12.1f}{:>12}{:14}\n", batch, ms, batch / ms * 1e3, fmt::format("{:.0f} ({:.0f})", gb, 100 * gb / card), step.n_launches());
  }
}

int run(int argc, char** argv) {
  const Shape* shape = &kShapes[2];
  bool predicts = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--predict") == 0) {
      predicts = true;
    } else if (std::strcmp(argv[i], "--shape") == 0 && i + 1 < argc) {
      const std::string name = argv[++i];
      shape = std::find_if(std::begin(kShapes), std::end(kShapes), [&](const Shape& s) { return s.name == name; });
      if (shape == std::end(kShapes)) return fmt::print(stderr, "gpu_bench: no shape '{}' (smollm2, 1b, 7b, 8b)\n", name), 2;
    } else {
      return fmt::print(stderr, "usage: gpu_bench [--shape smollm2|1b|7b|8b] [--predict]\n"), 2;
    }
  }
  int n_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&n_devices);
  if (predicts || error != cudaSuccess || n_devices == 0) {
    if (!predicts) fmt::print("no device: {} ({})\n\n", cudaGetErrorString(error), cudaGetErrorName(error));
    print_prediction();
    return 0;
  }
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "device");
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  const double card = copy_gb_per_s(stream);
  fmt::print("{} (sm_{}{}, {} multiprocessors), copies at {:.0f} GB/s\n", device.name, device.major, device.minor, device.multiProcessorCount, card);
  print_products(stream, card);
  print_steps(stream, *shape, card);
  check(cudaStreamDestroy(stream), "stream");
  return 0;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::run(argc, argv); }
