// State of the stand-in device, for its own files. One lock (runtime calls take it); kernels run under it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "simt.h"

namespace simt {

constexpr int kMaxStreams = 16;
constexpr uintptr_t kGranule = 64;                       // bytes a shadow entry stands for
constexpr size_t kDeviceSpan = size_t{64} << 30;         // addresses, not memory: none is given out twice
constexpr size_t kMaxDynamicShared = 227 << 10;
constexpr int kMaxBlockThreads = 1024;

struct Allocation {
  uintptr_t begin = 0, end = 0;
  bool is_freed = false;
  std::string label;
};

// One launch, copy or fill. seen[s]: the last operation of stream s that has certainly ended before this begins.
struct Operation {
  int stream = 0;
  uint32_t number = 0;
  uint32_t seen[kMaxStreams] = {};
  std::string name;
};

struct Granule {
  uint32_t allocation = 0;  // index, 0: none
  uint32_t writer = 0;      // operations, 0: none
  uint32_t readers[2] = {0, 0};  // the last ones of two streams
};

struct PendingHost {  // host memory that an unfinished copy reads or writes
  uintptr_t begin, end;
  bool is_written;
  int stream;
  uint32_t number;
};

struct HostRange {
  uintptr_t begin, end;
  bool is_registered;  // not allocated by us
};

struct Machine {
  std::recursive_mutex mutex;
  Options options;
  Counters counters;
  std::vector<Report> reports;
  uintptr_t device_begin = 0, device_next = 0;
  Granule* granules = nullptr;           // [kDeviceSpan / kGranule]
  uint64_t* block_writers = nullptr;     // per 4 bytes of device memory: launch << 32 | block + 1
  std::vector<Allocation> allocations{Allocation{}};
  std::vector<HostRange> host_ranges;
  std::vector<Operation> operations{Operation{}};
  std::vector<PendingHost> pending_host;
  uint32_t host_seen[kMaxStreams] = {};
  cudaError_t sticky = cudaSuccess, last = cudaSuccess;
  bool is_lost = false, is_instrumented = false;
  uint64_t random = 1;

  uint64_t draw() {  // xorshift64*
    random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
    return random * 0x2545f4914f6cdd1dull;
  }
  bool is_device(uintptr_t a) const { return a - device_begin < kDeviceSpan; }
};
Machine& machine();
void start_machine();  // idempotent

void add_report(Fault fault, const std::string& text);
// In a kernel: reports and ends the launch, which does not return. On the host: reports.
void fail_access(Fault fault, const std::string& text, cudaError_t error);

// --- what runs ---
struct Launch {
  const KernelType* type = nullptr;
  dim3 grid, block;
  size_t dynamic_bytes = 0;
  std::vector<char> params;
  uint32_t operation = 0;  // index into operations; 0 where nothing is tracked
  uint32_t id = 0;         // for block_writers
};
// Runs all blocks. Not cudaSuccess: a detector ended it.
cudaError_t run_launch(Launch* launch);
const void* params_begin();

// --- memory ---
std::string describe_address(uintptr_t a);
// A copy or fill by the device. False: reported.
bool check_device_range(uintptr_t begin, size_t n_bytes, bool is_write, uint32_t operation);
inline void stamp_granule(Machine& m, Granule& g, bool is_write, uint32_t operation);
void report_cross_stream(uintptr_t a, bool is_write, uint32_t operation, uint32_t other);

inline bool comes_before(const Machine& m, uint32_t earlier, uint32_t later) {
  const Operation &e = m.operations[earlier], &l = m.operations[later];
  return e.stream == l.stream || l.seen[e.stream] >= e.number;
}
// The granule that holds `a` is used by `operation`.
inline void touch_granule(Machine& m, uintptr_t a, bool is_write, uint32_t operation) {
  Granule& g = m.granules[(a - m.device_begin) / kGranule];
  if (operation == 0) return;
  if (g.writer != operation && g.writer != 0 && !comes_before(m, g.writer, operation))
    report_cross_stream(a, is_write, operation, g.writer);
  if (is_write) {
    if (g.writer == operation) return;
    for (uint32_t reader : g.readers) {
      if (reader != 0 && reader != operation && !comes_before(m, reader, operation))
        report_cross_stream(a, true, operation, reader);
    }
    g.writer = operation;
  } else if (g.readers[0] != operation && g.readers[1] != operation) {
    const int mine = m.operations[operation].stream;
    if (g.readers[0] != 0 && m.operations[g.readers[0]].stream != mine) g.readers[1] = g.readers[0];
    g.readers[0] = operation;
  }
}

// --- traffic ---
void note_access(uintptr_t a, unsigned n_bytes, bool is_write, const void* pc);
void begin_traffic(const Launch& launch);
void end_traffic_block();
void end_traffic();

std::string function_name(const void* address);

}  // namespace simt
