// Plants each fault and sees it caught, and sees sound kernels pass in every order.
#include <catch2/catch.hpp>

#include <numeric>
#include <vector>

#include "planted_kernels.h"
#include "simt.h"

namespace {

using planted::Kind;
using simt::Fault;

constexpr int kN = 1024;

struct Box {
  Box() {
    simt::reset();
    REQUIRE(cudaMalloc(&in, kN * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaMalloc(&out, kN * sizeof(float)) == cudaSuccess);
    REQUIRE(cudaMalloc(&counter, sizeof(unsigned)) == cudaSuccess);
    std::vector<float> values(kN);
    std::iota(values.begin(), values.end(), 0.0f);
    REQUIRE(cudaMemcpy(in, values.data(), kN * sizeof(float), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaMemset(counter, 0, sizeof(unsigned)) == cudaSuccess);
  }
  ~Box() { simt::reset(); }
  cudaError_t run(Kind kind, int n_blocks = 4, int n_threads = 256, cudaStream_t stream = nullptr) {
    const cudaError_t launched = planted::launch(kind, in, out, counter, kN, n_blocks, n_threads, stream);
    return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
  }
  float *in = nullptr, *out = nullptr;
  unsigned* counter = nullptr;
};

void check_caught(Kind kind, Fault fault, cudaError_t error, int n_blocks = 4, int n_threads = 256) {
  Box box;
  CHECK(box.run(kind, n_blocks, n_threads) == error);
  REQUIRE(simt::reports().size() == 1);
  INFO(simt::reports()[0].text);
  CHECK(simt::fault_name(simt::reports()[0].fault) == std::string(simt::fault_name(fault)));
  CHECK(cudaDeviceSynchronize() == error);  // it sticks
}

}  // namespace

TEST_CASE("The code under test is observed") { CHECK(simt::is_instrumented()); }

TEST_CASE("Sound kernels give one result in every order of threads and blocks, without a report") {
  for (uint64_t seed : {0, 1, 2, 3, 4, 5, 6, 7}) {
    Box box;
    simt::options().order_seed = seed;
    REQUIRE(box.run(Kind::kSum) == cudaSuccess);
    float sums[4];
    REQUIRE(cudaMemcpy(sums, box.out, sizeof sums, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int b = 0; b < 4; ++b) CHECK(sums[b] == 256.0f * (256.0f * static_cast<float>(b) + 127.5f));
    REQUIRE(box.run(Kind::kLastBlock, 64, 32) == cudaSuccess);
    float total = 0;
    REQUIRE(cudaMemcpy(&total, box.out, sizeof total, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(total == 63.0f * 64.0f / 2.0f);
    REQUIRE(box.run(Kind::kCopyWide, 1, 256) == cudaSuccess);
    std::vector<float> copy(kN);
    REQUIRE(cudaMemcpy(copy.data(), box.out, kN * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 0; i < kN; ++i) REQUIRE(copy[static_cast<size_t>(i)] == static_cast<float>(i));
    CHECK(simt::reports().empty());
  }
}

TEST_CASE("Barriers that not all threads reach") {
  check_caught(Kind::kBarrierInBranch, Fault::kDivergentBarrier, cudaErrorLaunchFailure);
  check_caught(Kind::kBarrierMissed, Fault::kDivergentBarrier, cudaErrorLaunchFailure);
  check_caught(Kind::kMaskNamesEnded, Fault::kDivergentBarrier, cudaErrorLaunchFailure);
}
TEST_CASE("Addresses outside of every allocation") {
  check_caught(Kind::kReadBeyond, Fault::kOutOfBounds, cudaErrorIllegalAddress);
  check_caught(Kind::kWriteBeyond, Fault::kOutOfBounds, cudaErrorIllegalAddress);
  check_caught(Kind::kReadBefore, Fault::kOutOfBounds, cudaErrorIllegalAddress);
  check_caught(Kind::kDynamicBeyond, Fault::kOutOfBounds, cudaErrorIllegalAddress);
}
TEST_CASE("Misaligned accesses") {
  check_caught(Kind::kMisaligned16, Fault::kMisaligned, cudaErrorMisalignedAddress, 1, 32);
  check_caught(Kind::kMisaligned4, Fault::kMisaligned, cudaErrorMisalignedAddress, 1, 32);
}
TEST_CASE("Shared memory nobody wrote") {
  check_caught(Kind::kUnwrittenStatic, Fault::kUnwrittenShared, cudaErrorLaunchFailure, 1, 64);
  check_caught(Kind::kUnwrittenDynamic, Fault::kUnwrittenShared, cudaErrorLaunchFailure, 1, 64);
}
TEST_CASE("Races in shared memory and between blocks") {
  check_caught(Kind::kSharedRaceWrite, Fault::kSharedRace, cudaErrorLaunchFailure, 1, 64);
  check_caught(Kind::kSharedRaceRead, Fault::kSharedRace, cudaErrorLaunchFailure, 1, 64);
  check_caught(Kind::kBlockRaceRead, Fault::kBlockRace, cudaErrorLaunchFailure, 8, 32);
}
TEST_CASE("Stack and trap") {
  check_caught(Kind::kDeepStack, Fault::kStackOverflow, cudaErrorLaunchFailure, 1, 32);
  check_caught(Kind::kTrap, Fault::kTrap, cudaErrorLaunchFailure, 1, 32);
}
TEST_CASE("Freed memory, and a kernel on host memory") {
  {
    Box box;
    float* gone = box.in;
    REQUIRE(cudaFree(box.in) == cudaSuccess);
    box.in = gone;
    CHECK(box.run(Kind::kSum) == cudaErrorIllegalAddress);
    CHECK(simt::has_report(Fault::kUseAfterFree));
  }
  {
    Box box;
    std::vector<float> host(kN);
    box.in = host.data();
    CHECK(box.run(Kind::kSum) == cudaErrorIllegalAddress);
    CHECK(simt::has_report(Fault::kDeviceTouchesHost));
  }
  {
    Box box;  // mapped host memory is the device's to read
    std::vector<float> host(kN, 1.0f);
    REQUIRE(cudaHostRegister(host.data(), kN * sizeof(float), cudaHostRegisterMapped) == cudaSuccess);
    box.in = host.data();
    CHECK(box.run(Kind::kSum) == cudaSuccess);
    CHECK(cudaHostUnregister(host.data()) == cudaSuccess);
    CHECK(simt::reports().empty());
  }
}
TEST_CASE("Host code on device memory") {
  Box box;
  planted::host_read(box.in + 3);
  REQUIRE(simt::reports().size() == 1);
  CHECK(simt::reports()[0].fault == Fault::kHostTouchesDevice);
  planted::host_write(box.out, 1.0f);
  CHECK(simt::reports().size() == 2);
}
TEST_CASE("Copies outside of an allocation, and in a wrong direction") {
  Box box;
  std::vector<float> host(2 * kN);
  CHECK(cudaMemcpy(box.in, host.data(), 2 * kN * sizeof(float), cudaMemcpyHostToDevice) == cudaErrorIllegalAddress);
  CHECK(simt::has_report(Fault::kOutOfBounds));
  Box other;
  CHECK(cudaMemcpy(host.data(), other.in, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
}
TEST_CASE("Launches that a device refuses") {
  Box box;
  CHECK(box.run(Kind::kSum, 1, 2048) == cudaErrorInvalidConfiguration);
  CHECK(box.run(Kind::kSum, 0, 32) == cudaErrorInvalidConfiguration);
  CHECK(simt::has_report(Fault::kBadLaunch));
}
TEST_CASE("A partial last warp shuffles among the lanes there are") {
  Box box;
  REQUIRE(box.run(Kind::kSum, 1, 48) == cudaSuccess);
  CHECK(simt::reports().empty());
}

TEST_CASE("Sectors of a warp are counted") {
  Box box;
  simt::options().counts_traffic = true;
  simt::label(box.in, "in");
  simt::label(box.out, "out");
  simt::clear_traffic();
  REQUIRE(box.run(Kind::kCopyWide, 1, 256) == cudaSuccess);
  for (const simt::Traffic& t : simt::traffic()) {
    CHECK(t.kernel.find("copy_wide") != std::string::npos);
    if (t.allocation == "in") {
      CHECK(t.reads == 8);
      CHECK(t.read_bytes == 4096);
      CHECK(t.read_sectors == 128);
      CHECK(t.read_least == 128);
      CHECK(t.footprint_bytes == 4096);
    } else {
      CHECK(t.write_sectors == 128);
    }
  }
  CHECK(simt::traffic().size() == 2);
  simt::clear_traffic();
  REQUIRE(box.run(Kind::kCopyStrided, 1, 32) == cudaSuccess);
  for (const simt::Traffic& t : simt::traffic()) {
    if (t.allocation != "in") continue;
    CHECK(t.reads == 1);
    CHECK(t.read_sectors == 32);
    CHECK(t.read_least == 4);
  }
}
