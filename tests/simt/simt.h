// What a test sees of the stand-in device: settings, faults to plant, what the detectors found, traffic counted.
// Confined to one host thread at a time, like everything below (one lock around the runtime API).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace simt {

enum class Fault : uint8_t {
  kDivergentBarrier,     // threads of a block, or lanes of a mask, wait at different places, or for one that has ended
  kOutOfBounds,          // an address that no live allocation holds
  kUseAfterFree,
  kMisaligned,
  kUnwrittenShared,      // shared memory read before anyone of the block wrote it
  kSharedRace,           // two threads, one word of shared memory, no barrier between, at least one write
  kHostTouchesDevice,    // host code reads or writes device memory
  kDeviceTouchesHost,    // a kernel reads or writes host memory that is not mapped
  kCrossStream,          // device memory used by two streams with no order between them, at least one write
  kHostRace,             // host code touches memory that a copy under way reads or writes
  kBlockRace,            // two blocks of one launch, one location, at least one plain write
  kStackOverflow,
  kTrap,
  kBadLaunch,            // what the device refuses: the reason is in the text
};
const char* fault_name(Fault fault);
struct Report {
  Fault fault;
  std::string text;      // kernel, thread, address, allocation, source line where known
};

struct Options {
  uint64_t order_seed = 1;         // of the order of threads, warps and blocks; 0: ascending
  bool counts_traffic = false;     // slow: every access of a warp is put together
  bool finds_shared_races = true;
  bool finds_block_races = true;
  bool runs_late = false;          // work runs when somebody waits for it, streams interleaved by order_seed
  size_t device_bytes = size_t{4} << 30;
  size_t other_process_bytes = 0;  // of the device, that somebody else holds
  int n_devices = 1;
  int sm_major = 8, sm_minor = 9, n_multiprocessors = 20;
  bool is_integrated = false;
  const char* name = "Tandem stand-in device";
  // Faults to come, by count of calls from now; 0: none. An error that sticks stays until reset().
  int64_t fail_malloc_at = 0;      // the n-th allocation from now finds no memory
  int64_t sticky_at_launch = 0;    // at the n-th launch (a graph counts once a kernel)
  int sticky_error = 719;          // which error
  int64_t hang_at_launch = 0;      // that launch never ends: whoever waits for it waits for ever
  int64_t lose_at_launch = 0;      // the device is gone from then on, for every call
  bool is_driver_missing = false;  // every call: cudaErrorInsufficientDriver
  // Launches of kernels whose name holds slow_kernel take slow_us more: what a step's time depends on is no card's here.
  std::string slow_kernel;
  int64_t slow_us = 0;
};
Options& options();
void reset();                      // frees everything, clears errors, reports, counters and options; no stream may be in use

const std::vector<Report>& reports();
bool has_report(Fault fault);
void clear_reports();
bool is_instrumented();            // the kernels seen so far call back for every access

// Since the last clear_traffic(): per kernel name and allocation.
struct Traffic {
  std::string kernel;              // as launched, demangled
  std::string allocation;          // label, or "#n"
  int64_t reads = 0, writes = 0;   // warp accesses
  int64_t read_bytes = 0, write_bytes = 0;        // asked for
  int64_t read_sectors = 0, write_sectors = 0;    // 32-byte sectors of these warp accesses
  int64_t read_least = 0, write_least = 0;        // that many would have done
  int64_t footprint_bytes = 0;     // distinct sectors x 32 a launch, summed over launches
};
std::vector<Traffic> traffic();
void clear_traffic();
struct LiveAllocation {
  std::string name;                // as in Traffic
  size_t n_bytes;
};
std::vector<LiveAllocation> allocations();
void label(const void* device_pointer, const char* name);  // of its allocation, in reports and traffic

struct Counters {
  int64_t launches = 0, graph_launches = 0, graph_nodes = 0, blocks = 0, accesses = 0;
  int64_t h2d_copies = 0, h2d_bytes = 0, d2h_copies = 0, d2h_bytes = 0, d2d_copies = 0, d2d_bytes = 0;
  int64_t mallocs = 0, host_allocs = 0, host_registers = 0, synchronizes = 0, instantiates = 0, updates = 0;
  int64_t device_bytes_used = 0, device_bytes_peak = 0;
};
const Counters& counters();
void clear_counters();

}  // namespace simt
