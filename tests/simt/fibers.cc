#include "fibers.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tandem {
// The one array of dynamic shared memory (kernels declare it `extern __shared__`).
thread_local __attribute__((aligned(1024))) unsigned char dynamic_shared[simt::kMaxDynamicShared];
}  // namespace tandem

extern "C" char __executable_start, _end;

namespace simt {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

// Not a power of two, so that the tops of the stacks fall into different cache sets.
constexpr uintptr_t kStackStride = (64 << 10) + (4 << 10) + 256;
constexpr uintptr_t kStackReserve = 8 << 10;  // for the stand-in's own functions
constexpr uint64_t kStackMark = 0x5ac4ac4ac4ac4ac5ull;

int find_tls(dl_phdr_info* info, size_t, void* out) {
  Runner* r = static_cast<Runner*>(out);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_TLS || info->dlpi_tls_data == nullptr) continue;
    r->shared_begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
    r->shared_bytes = info->dlpi_phdr[i].p_memsz;
  }
  return 1;  // the program itself comes first and is all we want
}

Runner* make_runner() {
  auto* r = new Runner;  // lives as long as the program: fibers may be left on its stacks
  r->stack_stride = kStackStride;
  r->stacks_bytes = kStackStride * kMaxBlockThreads;
  void* p = mmap(nullptr, r->stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) std::abort();
  r->stacks_begin = reinterpret_cast<uintptr_t>(p);
  dl_iterate_phdr(find_tls, r);
  r->written.resize(r->shared_bytes);
  r->shared_users.resize(r->shared_bytes);
  r->image_begin = reinterpret_cast<uintptr_t>(&__executable_start);
  r->image_end = reinterpret_cast<uintptr_t>(&_end);
  r->fibers.resize(kMaxBlockThreads);
  return r;
}

void yield() {
  Runner& r = *current_runner;
  Fiber* self = current_fiber;
  transfer_t t = jump_fcontext(r.scheduler, nullptr);
  current_runner->scheduler = t.fctx;
  current_fiber = self;
}

// What a fiber runs, block after block.
void fiber_main(transfer_t t) {
  Fiber* self = static_cast<Fiber*>(t.data);
  current_runner->scheduler = t.fctx;
  for (;;) {
    Runner& r = *current_runner;
    r.launch->type->invoke(r.launch->type->function, r.launch->params.data());
    self->state = Fiber::State::kEnded;
    t = jump_fcontext(r.scheduler, nullptr);
    current_runner->scheduler = t.fctx;
    current_fiber = self;
  }
}

uint64_t* stack_mark(const Runner& r, int i) {
  return reinterpret_cast<uint64_t*>((r.stacks_begin + r.stack_stride * static_cast<uintptr_t>(i) + 64) & ~uintptr_t{63});
}

void make_fiber(Runner& r, int i) {
  const uintptr_t bottom = r.stacks_begin + r.stack_stride * static_cast<uintptr_t>(i);
  *stack_mark(r, i) = kStackMark;
  r.fibers[static_cast<size_t>(i)].stack_low = bottom + kStackReserve;
  r.fibers[static_cast<size_t>(i)].context =
      make_fcontext(reinterpret_cast<void*>((bottom + r.stack_stride) & ~uintptr_t{63}), r.stack_stride - 64, fiber_main);
}

std::string place(const Fiber& f) {
  std::string text = "thread (" + std::to_string(f.index.x) + "," + std::to_string(f.index.y) + "," + std::to_string(f.index.z) + ")";
  if (f.state == Fiber::State::kEnded) return text + " has ended";
  const std::string at = std::string(f.site.file) + ":" + std::to_string(f.site.line);
  if (f.state == Fiber::State::kAtBarrier) return text + " waits at the barrier of " + at;
  char mask[16];
  std::snprintf(mask, sizeof mask, "%08x", f.mask);
  return text + " waits for the lanes " + mask + " at " + at;
}

// Nobody can run and not all have ended.
void report_stuck(Runner& r) {
  std::string text = "divergent: ";
  const Fiber* shown[3] = {nullptr, nullptr, nullptr};  // of each kind of waiting
  for (int i = 0; i < r.n_threads; ++i) {
    const Fiber& f = r.fibers[static_cast<size_t>(i)];
    const Fiber*& s = shown[f.state == Fiber::State::kAtBarrier ? 0 : f.state == Fiber::State::kInCollective ? 1 : 2];
    if (s == nullptr) s = &f;
  }
  for (const Fiber* f : shown) {
    if (f != nullptr) text += place(*f) + "; ";
  }
  add_report(Fault::kDivergentBarrier, text);
  r.is_aborted = true;
  r.error = cudaErrorLaunchFailure;
}

void release_barrier(Runner& r) {
  int n = 0;
  const Fiber* first = nullptr;
  for (int i = 0; i < r.n_threads; ++i) {
    Fiber& f = r.fibers[static_cast<size_t>(i)];
    if (f.state != Fiber::State::kAtBarrier) continue;
    if (first == nullptr) first = &f;
    if (f.site.line != first->site.line || std::strcmp(f.site.file, first->site.file) != 0 || f.vote != first->vote) {
      add_report(Fault::kDivergentBarrier, "divergent: " + place(*first) + "; " + place(f));
      r.is_aborted = true, r.error = cudaErrorLaunchFailure;
      return;
    }
    n += f.predicate != 0;
  }
  for (int i = 0; i < r.n_threads; ++i) {
    Fiber& f = r.fibers[static_cast<size_t>(i)];
    if (f.state != Fiber::State::kAtBarrier) continue;
    f.vote_result = f.vote == Vote::kAnd ? n == r.n_at_barrier : f.vote == Vote::kOr ? n > 0 : n;
    f.state = Fiber::State::kRunnable;
    r.warps[f.warp].runnable |= 1u << f.lane;
  }
  r.n_at_barrier = 0;
  ++r.interval;
}

void run_lane(Runner& r, Warp& w, Fiber& f) {
  current_fiber = &f;
  transfer_t t = jump_fcontext(f.context, &f);
  if (r.is_aborted) return;
  f.context = t.fctx;
  if (f.state == Fiber::State::kRunnable) return;  // it gave way to nobody in particular
  w.runnable &= ~(1u << f.lane);
  if (f.state == Fiber::State::kEnded) {
    w.alive &= ~(1u << f.lane);
    ++r.n_ended;
  }
}

void run_block(Runner& r) {
  const Machine& m = machine();
  uint64_t order = m.options.order_seed == 0 ? 0 : machine().draw();
  const int n_warps = (r.n_threads + 31) / 32;
  r.warps.assign(static_cast<size_t>(n_warps), Warp{});
  r.n_ended = r.n_at_barrier = 0;
  r.has_acquired = false;
  ++r.interval;
  if (++r.written_mark == 0) {
    std::fill(r.written.begin(), r.written.end(), uint8_t{0});
    r.written_mark = 1;
  }
  const dim3& b = r.launch->block;
  for (int i = 0; i < r.n_threads; ++i) {
    Fiber& f = r.fibers[static_cast<size_t>(i)];
    const unsigned n = static_cast<unsigned>(i);
    if (f.context == nullptr) make_fiber(r, i);
    f.index = {n % b.x, n / b.x % b.y, n / b.x / b.y};
    f.lane = n % 32, f.warp = n / 32, f.number = n;
    f.state = Fiber::State::kRunnable;
    r.warps[f.warp].alive |= 1u << f.lane;
  }
  for (Warp& w : r.warps) w.runnable = w.alive;

  const bool is_shuffled = m.options.order_seed != 0;
  while (r.n_ended < r.n_threads && !r.is_aborted) {
    bool has_run = false;
    const int first = is_shuffled ? static_cast<int>(order % static_cast<uint64_t>(n_warps)) : 0;
    const bool is_backward = is_shuffled && (order >> 32 & 1);
    for (int k = 0; k < n_warps && !r.is_aborted; ++k) {
      const int step = is_backward ? n_warps - k : k;
      const int index = (first + step) % n_warps;
      Warp& w = r.warps[static_cast<size_t>(index)];
      while (w.runnable != 0 && !r.is_aborted) {
        has_run = true;
        const unsigned flip = is_shuffled ? static_cast<unsigned>(order >> 40 & 31) : 0;
        for (unsigned i = 0; i < 32 && !r.is_aborted; ++i) {
          const unsigned lane = i ^ flip;
          if (w.runnable >> lane & 1) run_lane(r, w, r.fibers[static_cast<size_t>(index * 32) + lane]);
        }
        if (is_shuffled) order = order * 6364136223846793005ull + 1442695040888963407ull;
      }
    }
    if (r.is_aborted) break;
    if (r.n_at_barrier > 0 && r.n_at_barrier == r.n_threads - r.n_ended) {
      release_barrier(r);
    } else if (!has_run) {
      report_stuck(r);
    }
  }
  current_fiber = nullptr;
  for (int i = 0; i < r.n_threads; ++i) {
    if (*stack_mark(r, i) != kStackMark) {
      add_report(Fault::kStackOverflow, "a thread of " + function_name(r.launch->type->function) + " used more stack than " +
                                            std::to_string(kStackStride - kStackReserve) + " bytes");
      *stack_mark(r, i) = kStackMark;
      r.is_aborted = true, r.error = cudaErrorLaunchFailure;
    }
  }
  // What an aborted launch leaves on its stacks is dropped.
  if (r.is_aborted) {
    for (Fiber& f : r.fibers) f.context = nullptr;
  }
}

}  // namespace

thread_local Fiber* current_fiber = nullptr;
thread_local Runner* current_runner = nullptr;

const void* params_begin() { return current_runner->launch->params.data(); }

void abort_launch(cudaError_t error) {
  Runner& r = *current_runner;
  r.is_aborted = true;
  r.error = error;
  jump_fcontext(r.scheduler, nullptr);
  std::abort();  // nobody comes back to an aborted fiber
}

cudaError_t run_launch(Launch* launch) {
  static thread_local Runner* mine = nullptr;
  if (mine == nullptr) mine = make_runner();
  Machine& m = machine();
  Runner& r = *mine;
  current_runner = &r;
  r.launch = launch;
  r.is_aborted = false;
  r.error = cudaSuccess;
  r.n_threads = static_cast<int>(launch->block.x * launch->block.y * launch->block.z);
  r.dynamic_begin = reinterpret_cast<uintptr_t>(tandem::dynamic_shared);
  r.dynamic_end = r.dynamic_begin + launch->dynamic_bytes;
  const uint64_t n_blocks = uint64_t{launch->grid.x} * launch->grid.y * launch->grid.z;
  r.block_released.assign(n_blocks, 0);
  if (m.options.counts_traffic) begin_traffic(*launch);
  // A walk through all blocks with a step that has no common divisor with their number.
  uint64_t first = 0, step = 1;
  if (m.options.order_seed != 0 && n_blocks > 1) {
    first = m.draw() % n_blocks;
    step = m.draw() % n_blocks;
    auto gcd = [](uint64_t a, uint64_t b) {
      while (b != 0) a %= b, std::swap(a, b);
      return a;
    };
    while (step == 0 || gcd(step, n_blocks) != 1) step = step + 1 >= n_blocks ? 1 : step + 1;
  }
  for (uint64_t i = 0, at = first; i < n_blocks && !r.is_aborted; ++i, at = (at + step) % n_blocks) {
    r.block_number = static_cast<uint32_t>(at);
    r.block = {static_cast<unsigned>(at % launch->grid.x), static_cast<unsigned>(at / launch->grid.x % launch->grid.y),
               static_cast<unsigned>(at / launch->grid.x / launch->grid.y)};
    run_block(r);
    ++m.counters.blocks;
    if (m.options.counts_traffic) end_traffic_block();
  }
  if (m.options.counts_traffic) end_traffic();
  current_runner = nullptr;
  current_fiber = nullptr;
  return r.error;
}

// --- what device code calls -----------------------------------------------------------------------------------

uint3 thread_index() { return current_fiber->index; }
uint3 block_index() { return current_runner->block; }
dim3 block_dimensions() { return current_runner->launch->block; }
dim3 grid_dimensions() { return current_runner->launch->grid; }
unsigned lane_index() { return current_fiber->lane; }
unsigned live_lanes() { return current_runner->warps[current_fiber->warp].alive; }

int block_barrier(Vote vote, int predicate, Site site) {
  Fiber& f = *current_fiber;
  f.vote = vote, f.predicate = predicate, f.site = site;
  f.state = Fiber::State::kAtBarrier;
  ++current_runner->n_at_barrier;
  yield();
  return current_fiber->vote_result;
}

void warp_collective(unsigned mask, CollectiveRun run, void* arg, Site site) {
  Runner& r = *current_runner;
  Fiber& f = *current_fiber;
  Warp& w = r.warps[f.warp];
  if ((mask >> f.lane & 1) == 0) {
    fail_access(Fault::kDivergentBarrier, "lane " + std::to_string(f.lane) + " calls a warp operation of " + site.file + ":" +
                                              std::to_string(site.line) + " whose mask does not name it", cudaErrorLaunchFailure);
  }
  f.mask = mask, f.run = run, f.arg = arg, f.site = site;
  w.waiting |= 1u << f.lane;
  if ((w.waiting & mask) != mask) {
    // A partial last warp: lanes beyond the block count as absent, as the hardware has them.
    f.state = Fiber::State::kInCollective;
    const unsigned beyond = r.n_threads - static_cast<int>(f.warp * 32) >= 32 ? 0u : ~0u << (r.n_threads - static_cast<int>(f.warp * 32));
    if (((w.waiting | beyond) & mask) != mask) {
      yield();
      return;
    }
    mask &= ~beyond;
  }
  void* args[32] = {};
  Fiber* lanes = &r.fibers[f.warp * 32];
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    const Fiber& other = lanes[i];
    if (other.run != run || other.mask != f.mask || other.site.line != site.line) {
      f.state = Fiber::State::kInCollective;
      fail_access(Fault::kDivergentBarrier, "divergent: " + place(f) + "; " + place(other), cudaErrorLaunchFailure);
    }
    args[i] = other.arg;
  }
  run(mask, args);
  w.waiting &= ~mask;
  ++w.epoch;
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    lanes[i].state = Fiber::State::kRunnable;
    w.runnable |= 1u << i;
  }
}

void device_trap(const char* what, Site site) {
  fail_access(Fault::kTrap, std::string(what) + " at " + site.file + ":" + std::to_string(site.line), cudaErrorLaunchFailure);
  std::abort();
}

void run_nothing(unsigned, void* const*) {}

void run_shuffle(unsigned mask, void* const* args) {
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    auto* a = static_cast<ShuffleArg*>(args[i]);
    // From a lane that takes no part the device gives an undefined value: here one that is noticed.
    const bool is_there = a->from >= 0 && a->from < 32 && (mask >> a->from & 1);
    a->result = is_there ? static_cast<const ShuffleArg*>(args[a->from])->value : 0x7fedbeef7fedbeefull;
  }
}

void run_ballot(unsigned mask, void* const* args) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) bits |= static_cast<uint32_t>(static_cast<VoteArg*>(args[i])->value != 0) << i;
  }
  for (int i = 0; i < 32; ++i) {
    if (mask >> i & 1) static_cast<VoteArg*>(args[i])->result = bits;
  }
}

void run_match_any(unsigned mask, void* const* args) {
  for (int i = 0; i < 32; ++i) {
    if ((mask >> i & 1) == 0) continue;
    auto* a = static_cast<VoteArg*>(args[i]);
    a->result = 0;
    for (int j = 0; j < 32; ++j) {
      if ((mask >> j & 1) && static_cast<VoteArg*>(args[j])->value == a->value) a->result |= 1u << j;
    }
  }
}

#define SIMT_REDUCE(NAME, FIRST, EXPR)                                                   \
  void NAME(unsigned mask, void* const* args) {                                          \
    uint32_t a = FIRST;                                                                  \
    for (int i = 0; i < 32; ++i) {                                                       \
      if (mask >> i & 1) {                                                               \
        const uint32_t b = static_cast<ReduceArg*>(args[i])->value;                      \
        a = EXPR;                                                                        \
      }                                                                                  \
    }                                                                                    \
    for (int i = 0; i < 32; ++i) {                                                       \
      if (mask >> i & 1) static_cast<ReduceArg*>(args[i])->result = a;                   \
    }                                                                                    \
  }
SIMT_REDUCE(run_reduce_add, 0, a + b)
SIMT_REDUCE(run_reduce_min_s, 0x7fffffffu, static_cast<int>(b) < static_cast<int>(a) ? b : a)
SIMT_REDUCE(run_reduce_max_s, 0x80000000u, static_cast<int>(b) > static_cast<int>(a) ? b : a)
SIMT_REDUCE(run_reduce_min_u, 0xffffffffu, b < a ? b : a)
SIMT_REDUCE(run_reduce_max_u, 0, b > a ? b : a)
SIMT_REDUCE(run_reduce_or, 0, a | b)
SIMT_REDUCE(run_reduce_and, 0xffffffffu, a & b)

}  // namespace simt
