// Streams, events, graphs and planted failures of the device.
#include <catch2/catch.hpp>

#include <chrono>
#include <vector>

#include "planted_kernels.h"
#include "simt.h"

namespace {

using planted::Kind;
using simt::Fault;
constexpr int kN = 1024;
constexpr size_t kBytes = kN * sizeof(float);

struct Box {
  explicit Box(bool is_late = false) {
    simt::reset();
    simt::options().runs_late = is_late;
    REQUIRE(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    REQUIRE(cudaMalloc(&in, kBytes) == cudaSuccess);
    REQUIRE(cudaMalloc(&out, kBytes) == cudaSuccess);
    REQUIRE(cudaMallocHost(&host, kBytes) == cudaSuccess);
    REQUIRE(cudaMemset(in, 0, kBytes) == cudaSuccess);
    REQUIRE(cudaMemset(out, 0, kBytes) == cudaSuccess);
    for (int i = 0; i < kN; ++i) planted::host_write(host + i, 1.0f);
  }
  ~Box() { simt::reset(); }
  cudaError_t sum(cudaStream_t s) { return planted::launch(Kind::kSum, in, out, nullptr, kN, 4, 256, s); }
  cudaStream_t a = nullptr, b = nullptr;
  cudaEvent_t event = nullptr;
  float *in = nullptr, *out = nullptr, *host = nullptr;
};

}  // namespace

TEST_CASE("Two streams without an event between them are caught, with one they are not") {
  for (bool is_late : {false, true}) {
    {
      Box box(is_late);
      REQUIRE(cudaMemcpyAsync(box.in, box.host, kBytes, cudaMemcpyHostToDevice, box.a) == cudaSuccess);
      box.sum(box.b);
      cudaDeviceSynchronize();
      CHECK(simt::has_report(Fault::kCrossStream));
    }
    {
      Box box(is_late);
      REQUIRE(cudaMemcpyAsync(box.in, box.host, kBytes, cudaMemcpyHostToDevice, box.a) == cudaSuccess);
      REQUIRE(cudaEventRecord(box.event, box.a) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(box.b, box.event) == cudaSuccess);
      REQUIRE(box.sum(box.b) == cudaSuccess);
      REQUIRE(cudaMemcpyAsync(box.host, box.out, kBytes, cudaMemcpyDeviceToHost, box.b) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(box.b) == cudaSuccess);
      CHECK(planted::host_read(box.host) == 256.0f);
      // Also the host may be what orders them.
      REQUIRE(cudaMemcpyAsync(box.in, box.host, kBytes, cudaMemcpyHostToDevice, box.a) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(box.a) == cudaSuccess);
      REQUIRE(box.sum(box.b) == cudaSuccess);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      CHECK(simt::reports().empty());
    }
    {
      Box box(is_late);  // a read under way, and a write that does not wait for it
      REQUIRE(box.sum(box.a) == cudaSuccess);
      cudaMemsetAsync(box.in, 1, kBytes, box.b);
      cudaDeviceSynchronize();
      CHECK(simt::has_report(Fault::kCrossStream));
    }
  }
}

TEST_CASE("Host memory of a copy under way is not the host's") {
  {
    Box box;
    REQUIRE(cudaMemcpyAsync(box.host, box.in, kBytes, cudaMemcpyDeviceToHost, box.a) == cudaSuccess);
    planted::host_read(box.host + 5);
    CHECK(simt::has_report(Fault::kHostRace));
  }
  {
    Box box;
    REQUIRE(cudaMemcpyAsync(box.in, box.host, kBytes, cudaMemcpyHostToDevice, box.a) == cudaSuccess);
    planted::host_read(box.host + 5);
    CHECK(simt::reports().empty());
    planted::host_write(box.host + 5, 2.0f);
    CHECK(simt::has_report(Fault::kHostRace));
  }
  {
    Box box;
    REQUIRE(cudaMemcpyAsync(box.host, box.in, kBytes, cudaMemcpyDeviceToHost, box.a) == cudaSuccess);
    REQUIRE(cudaEventRecord(box.event, box.a) == cudaSuccess);
    REQUIRE(cudaEventSynchronize(box.event) == cudaSuccess);
    planted::host_read(box.host + 5);
    CHECK(simt::reports().empty());
  }
}

TEST_CASE("Late work is done when it is waited for, and not before") {
  Box box(true);
  REQUIRE(cudaMemcpyAsync(box.in, box.host, kBytes, cudaMemcpyHostToDevice, box.a) == cudaSuccess);
  REQUIRE(box.sum(box.a) == cudaSuccess);
  CHECK(simt::counters().blocks == 0);
  REQUIRE(cudaStreamSynchronize(box.a) == cudaSuccess);
  CHECK(simt::counters().blocks == 4);
}

TEST_CASE("A captured graph runs again and is updated in place") {
  Box box;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  REQUIRE(cudaStreamBeginCapture(box.a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(box.in, box.host, kBytes, cudaMemcpyHostToDevice, box.a) == cudaSuccess);
  REQUIRE(box.sum(box.a) == cudaSuccess);
  CHECK(simt::counters().blocks == 0);
  REQUIRE(cudaStreamEndCapture(box.a, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  float first = 0;
  for (float value : {1.0f, 2.0f}) {
    for (int i = 0; i < kN; ++i) planted::host_write(box.host + i, value);
    REQUIRE(cudaGraphLaunch(exec, box.a) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(box.a) == cudaSuccess);
    REQUIRE(cudaMemcpy(&first, box.out, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(first == 256.0f * value);
  }
  CHECK(simt::counters().graph_launches == 2);
  CHECK(simt::counters().launches == 2);

  size_t n = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &n) == cudaSuccess);
  REQUIRE(n == 2);
  cudaGraphNode_t nodes[2];
  REQUIRE(cudaGraphGetNodes(graph, nodes, &n) == cudaSuccess);
  cudaGraphNodeType type;
  REQUIRE(cudaGraphNodeGetType(nodes[1], &type) == cudaSuccess);
  REQUIRE(type == cudaGraphNodeTypeKernel);
  cudaKernelNodeParams params;
  REQUIRE(cudaGraphKernelNodeGetParams(nodes[1], &params) == cudaSuccess);
  REQUIRE(params.gridDim.x == 4);
  int few = 10;
  void* args[3] = {params.kernelParams[0], params.kernelParams[1], &few};
  params.kernelParams = args;
  params.gridDim = dim3(1);
  REQUIRE(cudaGraphExecKernelNodeSetParams(exec, nodes[1], &params) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(exec, box.a) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(box.a) == cudaSuccess);
  REQUIRE(cudaMemcpy(&first, box.out, 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(first == 20.0f);

  // A graph of another shape does not fit.
  cudaGraph_t other = nullptr;
  REQUIRE(cudaStreamBeginCapture(box.a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(box.sum(box.a) == cudaSuccess);
  REQUIRE(cudaStreamEndCapture(box.a, &other) == cudaSuccess);
  cudaGraphExecUpdateResultInfo info;
  CHECK(cudaGraphExecUpdate(exec, other, &info) == cudaErrorGraphExecUpdateFailure);
  CHECK(info.result == cudaGraphExecUpdateErrorTopologyChanged);
  CHECK(cudaGraphExecUpdate(exec, graph, &info) == cudaSuccess);
  // Waiting for a stream that is captured is refused, as is pageable memory.
  REQUIRE(cudaStreamBeginCapture(box.a, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudaStreamSynchronize(box.a) == cudaErrorStreamCaptureUnsupported);
  std::vector<float> pageable(kN);
  CHECK(cudaMemcpyAsync(box.in, pageable.data(), kBytes, cudaMemcpyHostToDevice, box.a) == cudaErrorStreamCaptureUnsupported);
  cudaGraph_t empty = nullptr;
  REQUIRE(cudaStreamEndCapture(box.a, &empty) == cudaSuccess);
  for (cudaGraph_t g : {graph, other, empty}) cudaGraphDestroy(g);
  cudaGraphExecDestroy(exec);
}

TEST_CASE("Planted failures: memory, an error that sticks, a device that goes, a driver that is not there") {
  {
    Box box;
    simt::options().fail_malloc_at = 2;
    float *p = nullptr, *q = nullptr;
    CHECK(cudaMalloc(&p, 16) == cudaSuccess);
    CHECK(cudaMalloc(&q, 16) == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&q, 16) == cudaSuccess);
    CHECK(cudaMalloc(&q, simt::options().device_bytes) == cudaErrorMemoryAllocation);
    size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    CHECK(total_bytes - free_bytes == 2 * kBytes + 32);
  }
  {
    Box box;
    simt::options().sticky_at_launch = 3;
    simt::options().sticky_error = cudaErrorEccUncorrectable;
    CHECK(box.sum(box.a) == cudaSuccess);
    CHECK(box.sum(box.a) == cudaSuccess);
    CHECK(box.sum(box.a) == cudaErrorEccUncorrectable);
    CHECK(cudaStreamSynchronize(box.a) == cudaErrorEccUncorrectable);
    CHECK(cudaGetLastError() == cudaErrorEccUncorrectable);
    CHECK(cudaGetLastError() == cudaErrorEccUncorrectable);
  }
  {
    Box box;
    simt::options().lose_at_launch = 1;
    CHECK(box.sum(box.a) == cudaErrorUnknown);
    CHECK(cudaDeviceSynchronize() == cudaErrorUnknown);
  }
  {
    Box box;
    simt::options().hang_at_launch = 2;
    CHECK(box.sum(box.a) == cudaSuccess);
    CHECK(cudaStreamQuery(box.a) == cudaSuccess);
    CHECK(box.sum(box.a) == cudaSuccess);
    for (int i = 0; i < 100; ++i) CHECK(cudaStreamQuery(box.a) == cudaErrorNotReady);
  }
  {
    Box box;
    const auto ms = [&] {
      const auto begin = std::chrono::steady_clock::now();
      CHECK(box.sum(box.a) == cudaSuccess);
      return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    };
    simt::options().slow_us = 300'000;
    simt::options().slow_kernel = "another";
    CHECK(ms() < 250);
    simt::options().slow_kernel = "sum";
    CHECK(ms() >= 300);
  }
  {
    simt::reset();
    simt::options().is_driver_missing = true;
    int n = -1, version = -1;
    CHECK(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver);
    CHECK(n == 0);
    CHECK(cudaDriverGetVersion(&version) == cudaSuccess);
    CHECK(version == 0);
    simt::reset();
    simt::options().n_devices = 0;
    CHECK(cudaGetDeviceCount(&n) == cudaErrorNoDevice);
    simt::reset();
  }
}
