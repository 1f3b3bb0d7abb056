// Every load and store of instrumented code comes through here: the functions that -fsanitize=thread calls, ours
// instead of the library's. The detectors of memory stand behind them.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "fibers.h"

namespace simt {
namespace {

std::string hex(uintptr_t a) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%zx", static_cast<size_t>(a));
  return text;
}

std::string who() {
  const Fiber& f = *current_fiber;
  const uint3 b = current_runner->block;
  return function_name(current_runner->launch->type->function) + ", block (" + std::to_string(b.x) + "," + std::to_string(b.y) + "," +
         std::to_string(b.z) + ") thread (" + std::to_string(f.index.x) + "," + std::to_string(f.index.y) + "," +
         std::to_string(f.index.z) + ")";
}

const char* verb(bool is_write) { return is_write ? "writes" : "reads"; }

[[gnu::cold, gnu::noinline]] void fail(Fault fault, uintptr_t a, unsigned n, bool is_write, const std::string& what, cudaError_t error) {
  fail_access(fault, who() + " " + verb(is_write) + " " + std::to_string(n) + " bytes at " + hex(a) + ": " + what, error);
}

// --- shared memory ----------------------------------------------------------------------------------------------

[[gnu::cold, gnu::noinline]] void report_race(uintptr_t a, unsigned n, bool is_write, unsigned other, bool other_wrote) {
  fail(Fault::kSharedRace, a, n, is_write,
       "shared memory, which thread number " + std::to_string(other) + (other_wrote ? " wrote" : " read") + " with no barrier between",
       cudaErrorLaunchFailure);
}

inline bool is_ordered(const Runner& r, const Fiber& f, unsigned other, uint16_t epoch) {
  return other == f.number || (other / 32 == f.warp && epoch != static_cast<uint16_t>(r.warps[f.warp].epoch));
}

void shared_access(Runner& r, uintptr_t a, unsigned n, bool is_write, bool finds_races) {
  const uintptr_t at = a - r.shared_begin;
  if (a + n > r.dynamic_end && a < r.dynamic_begin + kMaxDynamicShared && a >= r.dynamic_begin)
    fail(Fault::kOutOfBounds, a, n, is_write, "byte " + std::to_string(a - r.dynamic_begin) + " of " + std::to_string(r.dynamic_end - r.dynamic_begin) +
         " of dynamic shared memory", cudaErrorIllegalAddress);
  uint8_t* written = r.written.data() + at;
  const Fiber& f = *current_fiber;
  if (is_write) {
    std::memset(written, r.written_mark, n);
  } else {
    for (unsigned i = 0; i < n; ++i) {
      if (written[i] != r.written_mark) fail(Fault::kUnwrittenShared, a, n, false, "shared memory that nobody of the block wrote", cudaErrorLaunchFailure);
    }
  }
  if (!finds_races) return;
  const uint16_t epoch = static_cast<uint16_t>(r.warps[f.warp].epoch);
  SharedByte* users = r.shared_users.data() + at;
  for (unsigned i = 0; i < n; ++i) {
    SharedByte& u = users[i];
    if (u.write_interval == r.interval && !is_ordered(r, f, u.writer, u.write_epoch)) report_race(a, n, is_write, u.writer, true);
    if (is_write) {
      if (u.read_interval == r.interval && !is_ordered(r, f, u.reader, u.read_epoch)) report_race(a, n, true, u.reader, false);
      u.write_interval = r.interval, u.writer = static_cast<uint16_t>(f.number), u.write_epoch = epoch;
    } else {
      u.read_interval = r.interval, u.reader = static_cast<uint16_t>(f.number), u.read_epoch = epoch;
    }
  }
}

// --- device memory ----------------------------------------------------------------------------------------------

[[gnu::cold, gnu::noinline]] void fail_device(const Machine& m, uintptr_t a, unsigned n, bool is_write) {
  const Allocation& held = m.allocations[m.granules[(a - m.device_begin) / kGranule].allocation];
  fail(held.is_freed ? Fault::kUseAfterFree : Fault::kOutOfBounds, a, n, is_write, describe_address(a), cudaErrorIllegalAddress);
}

void device_access(Machine& m, Runner& r, uintptr_t a, unsigned n, bool is_write, bool is_atomic) {
  const Granule& g = m.granules[(a - m.device_begin) / kGranule];
  const Allocation& held = m.allocations[g.allocation];
  if (a + n > held.end || held.is_freed) fail_device(m, a, n, is_write);
  const uint32_t operation = r.launch->operation;
  if (is_write ? g.writer != operation : g.readers[0] != operation && g.readers[1] != operation) touch_granule(m, a, is_write, operation);
  if ((a & (kGranule - 1)) + n > kGranule) touch_granule(m, a + n - 1, is_write, operation);
  if (!m.options.finds_block_races || is_atomic) return;
  // Plain accesses of two blocks: only what this launch wrote can clash.
  if (!is_write && g.writer != operation) return;
  uint64_t* w = m.block_writers + (a - m.device_begin) / 4;
  const uint64_t mine = uint64_t{r.launch->id} << 32 | (r.block_number + 1);
  for (unsigned i = 0; i < (n + 3) / 4; ++i) {
    if (w[i] >> 32 == r.launch->id && w[i] != mine) {
      const uint32_t other = static_cast<uint32_t>(w[i]) - 1;
      // After atomics of both blocks, the later one may look at what the earlier one left.
      if (!(r.has_acquired && r.block_released[other]) && n >= 4)
        fail(Fault::kBlockRace, a, n, is_write, "which block number " + std::to_string(other) + " of the same launch wrote; " + describe_address(a), cudaErrorLaunchFailure);
    }
    if (is_write) w[i] = mine;
  }
}

// --- anything else ----------------------------------------------------------------------------------------------

[[gnu::noinline]] void other_access(Machine& m, Runner& r, uintptr_t a, unsigned n, bool is_write) {
  const uintptr_t params = reinterpret_cast<uintptr_t>(r.launch->params.data());
  if (!is_write && a - params < r.launch->params.size()) return;
  if (a >= r.image_begin && a < r.image_end) return;  // constants and __device__ variables
  for (const HostRange& h : m.host_ranges) {
    if (a >= h.begin && a + n <= h.end) return;
  }
  fail(Fault::kDeviceTouchesHost, a, n, is_write, "not device memory, not shared, not mapped host memory", cudaErrorIllegalAddress);
}

[[gnu::noinline]] void host_access(Machine& m, uintptr_t a, unsigned n, bool is_write) {
  if (m.device_begin != 0 && m.is_device(a)) {
    add_report(Fault::kHostTouchesDevice, std::string("host code ") + verb(is_write) + " " + std::to_string(n) + " bytes at " + hex(a) + ": " + describe_address(a));
    return;
  }
  for (const PendingHost& p : m.pending_host) {
    if (a >= p.end || a + n <= p.begin || (!p.is_written && !is_write)) continue;
    if (m.host_seen[p.stream] >= p.number) continue;
    add_report(Fault::kHostRace, std::string("host code ") + verb(is_write) + " " + std::to_string(n) + " bytes at " + hex(a) + ", which a copy under way " +
               (p.is_written ? "writes" : "reads"));
    return;
  }
}

inline void on_access(void* p, unsigned n, bool is_write, bool is_aligned, const void* pc) {
  Machine& m = machine();
  const uintptr_t a = reinterpret_cast<uintptr_t>(p);
  const Fiber* f = current_fiber;
  if (f == nullptr) {
    if (m.device_begin != 0) host_access(m, a, n, is_write);
    return;
  }
  Runner& r = *current_runner;
  ++m.counters.accesses;
  if (reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) < f->stack_low) fail(Fault::kStackOverflow, a, n, is_write, "the stack of the thread is used up", cudaErrorLaunchFailure);
  if (a - m.device_begin < kDeviceSpan) {
    if (is_aligned && (a & (n - 1)) != 0) fail(Fault::kMisaligned, a, n, is_write, "not a multiple of the size", cudaErrorMisalignedAddress);
    device_access(m, r, a, n, is_write, false);
    if (m.options.counts_traffic) note_access(a, n, is_write, pc);
  } else if (a - r.shared_begin < r.shared_bytes) {
    if (is_aligned && (a & (n - 1)) != 0) fail(Fault::kMisaligned, a, n, is_write, "shared memory, not a multiple of the size", cudaErrorMisalignedAddress);
    shared_access(r, a, n, is_write, m.options.finds_shared_races);
  } else if (a - r.stacks_begin >= r.stacks_bytes) {
    other_access(m, r, a, n, is_write);
  }
}

// An atomic operation of a kernel.
void on_atomic(uintptr_t a, unsigned n) {
  if (current_fiber == nullptr) return;
  Machine& m = machine();
  Runner& r = *current_runner;
  if ((a & (n - 1)) != 0) fail(Fault::kMisaligned, a, n, true, "an atomic operation, not a multiple of the size", cudaErrorMisalignedAddress);
  if (m.is_device(a)) {
    device_access(m, r, a, n, true, true);
    r.has_acquired = true;
    r.block_released[r.block_number] = 1;
    if (m.options.counts_traffic) note_access(a, n, true, __builtin_return_address(0));
  } else if (a - r.shared_begin < r.shared_bytes) {
    if (m.is_instrumented) shared_access(r, a, n, false, false);  // atomics do not race with atomics
  } else {
    other_access(m, r, a, n, true);
  }
}

}  // namespace

uint32_t atomic_u32(void* p, uint32_t (*combine)(uint32_t, uint32_t), uint32_t value) {
  on_atomic(reinterpret_cast<uintptr_t>(p), 4);
  auto* at = static_cast<uint32_t*>(p);
  const uint32_t old = *at;
  *at = combine(old, value);
  return old;
}
uint64_t atomic_u64(void* p, uint64_t (*combine)(uint64_t, uint64_t), uint64_t value) {
  on_atomic(reinterpret_cast<uintptr_t>(p), 8);
  auto* at = static_cast<uint64_t*>(p);
  const uint64_t old = *at;
  *at = combine(old, value);
  return old;
}
uint32_t atomic_cas_u32(void* p, uint32_t expected, uint32_t value) {
  on_atomic(reinterpret_cast<uintptr_t>(p), 4);
  auto* at = static_cast<uint32_t*>(p);
  const uint32_t old = *at;
  if (old == expected) *at = value;
  return old;
}
uint64_t atomic_cas_u64(void* p, uint64_t expected, uint64_t value) {
  on_atomic(reinterpret_cast<uintptr_t>(p), 8);
  auto* at = static_cast<uint64_t*>(p);
  const uint64_t old = *at;
  if (old == expected) *at = value;
  return old;
}

}  // namespace simt

#define SIMT_PC __builtin_return_address(0)
#define SIMT_HOOKS(N)                                                                             \
  void __tsan_read##N(void* p) { simt::on_access(p, N, false, true, SIMT_PC); }                   \
  void __tsan_write##N(void* p) { simt::on_access(p, N, true, true, SIMT_PC); }                   \
  void __tsan_unaligned_read##N(void* p) { simt::on_access(p, N, false, false, SIMT_PC); }        \
  void __tsan_unaligned_write##N(void* p) { simt::on_access(p, N, true, false, SIMT_PC); }        \
  void __tsan_volatile_read##N(void* p) { simt::on_access(p, N, false, true, SIMT_PC); }          \
  void __tsan_volatile_write##N(void* p) { simt::on_access(p, N, true, true, SIMT_PC); }
extern "C" {
SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)
void __tsan_read_range(void* p, size_t n) {
  if (n > 0) simt::on_access(p, static_cast<unsigned>(n), false, false, SIMT_PC);
}
void __tsan_write_range(void* p, size_t n) {
  if (n > 0) simt::on_access(p, static_cast<unsigned>(n), true, false, SIMT_PC);
}
void __tsan_init() { simt::machine().is_instrumented = true; }
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
void __tsan_atomic_signal_fence(int) {}
// std::atomic of instrumented host code.
#define SIMT_ATOMIC(N, T)                                                                                                      \
  T __tsan_atomic##N##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }                         \
  void __tsan_atomic##N##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }                         \
  T __tsan_atomic##N##_exchange(volatile T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }               \
  T __tsan_atomic##N##_fetch_add(volatile T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }               \
  T __tsan_atomic##N##_fetch_sub(volatile T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); }               \
  T __tsan_atomic##N##_fetch_and(volatile T* p, T v, int) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }               \
  T __tsan_atomic##N##_fetch_or(volatile T* p, T v, int) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }                 \
  T __tsan_atomic##N##_fetch_xor(volatile T* p, T v, int) { return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); }               \
  int __tsan_atomic##N##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) {                                         \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                    \
  }                                                                                                                            \
  int __tsan_atomic##N##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) {                                           \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                    \
  }
SIMT_ATOMIC(8, uint8_t)
SIMT_ATOMIC(16, uint16_t)
SIMT_ATOMIC(32, uint32_t)
SIMT_ATOMIC(64, uint64_t)
}
