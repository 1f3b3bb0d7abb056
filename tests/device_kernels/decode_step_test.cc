// A whole decode step of the shipped launches (tests/bench/gpu), as a graph: launches a layer, bytes a token, the same tokens
// from every row and order.
#include "tests/device_kernels/device_fixture.h"

#include <cmath>
#include <iostream>

#include "tests/bench/gpu/decode_step.h"

using namespace tandem;
using bench::DecodeStep;
using bench::Shape;

namespace {

constexpr Shape kTiny = {"tiny", 2, 256, 512, 4, 2, 64, 500, GgmlType::kQ4_K, GgmlType::kQ6_K};

std::vector<int32_t> decode(const Shape& s, int batch, int context, uint64_t order) {
  DeviceRun run(order);
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  std::vector<int32_t> tokens;
  {
    DecodeStep step(s, batch, context, stream);
    CHECK(step.n_launches() == bench::launches_per_step(s));
    step.run();
    step.run();
    run.finish(cudaSuccess);
    tokens = step.tokens();
  }
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  return tokens;
}

}  // namespace

TEST_CASE("a decode step is five launches a layer, and rows do not depend on each other") {
  const std::vector<int32_t> one = decode(kTiny, 1, 300, 1);
  REQUIRE(one.size() == 1);
  CHECK(one[0] >= 0);
  CHECK(one[0] < 500);
  for (int batch : {3, 9}) {  // dp4a, and mma with one row in a group of its own
    for (uint64_t order : {2, 3}) {
      for (int32_t token : decode(kTiny, batch, 300, order)) CHECK(token == one[0]);
    }
  }
}

#if defined(TANDEM_SIMT)
TEST_CASE("a token moves no more than 15 % beyond the bytes of weights and K/V") {
  const Shape s = {"one layer", 1, 1024, 2816, 16, 8, 64, 2048, GgmlType::kQ4_K, GgmlType::kQ6_K};
  constexpr int kContext = 500;
  DeviceRun run;
  cudaStream_t stream;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  {
    DecodeStep step(s, 1, kContext, stream);
    simt::options().counts_traffic = true;
    simt::clear_traffic();
    simt::clear_counters();
    step.run();
    run.finish(cudaStreamSynchronize(stream));
  }
  CHECK(simt::counters().graph_launches == 1);
  int64_t moved = 0;
  for (const simt::Traffic& t : simt::traffic()) moved += t.footprint_bytes;
  const int64_t needed = bench::weight_bytes(s) + bench::kv_bytes(s, kContext);
  const double ratio = static_cast<double>(moved) / static_cast<double>(needed);
  if (std::getenv("TANDEM_PRINT_ERRORS")) std::cout << "bytes a token: " << moved << " moved, " << needed << " needed, " << ratio << "\n";
  CHECK(ratio <= 1.15);
  CHECK(ratio >= 0.95);  // else something was not counted
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}
#endif
