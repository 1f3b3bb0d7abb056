// The threads of a block as fibers: they run one at a time, until they wait or end.
#pragma once

#include <boost/context/detail/fcontext.hpp>

#include "machine.h"

namespace simt {

struct Fiber {
  enum class State : uint8_t { kRunnable, kAtBarrier, kInCollective, kEnded };
  boost::context::detail::fcontext_t context = nullptr;
  uint3 index{};
  unsigned lane = 0, warp = 0, number = 0;
  uintptr_t stack_low = 0;  // below it the stack is as good as used up
  State state = State::kEnded;
  Vote vote = Vote::kNone;
  int predicate = 0, vote_result = 0;
  unsigned mask = 0;
  CollectiveRun run = nullptr;
  void* arg = nullptr;
  Site site{"", 0};
};

struct Warp {
  unsigned alive = 0, runnable = 0, waiting = 0;  // lanes
  uint32_t epoch = 0;                             // collectives that have ended
};

struct SharedByte {  // who used a byte of shared memory last
  uint32_t write_interval = 0, read_interval = 0;   // between which barriers; 0: never
  uint16_t writer = 0, reader = 0;                  // threads
  uint16_t write_epoch = 0, read_epoch = 0;         // of the warp
};

struct Runner {
  Launch* launch = nullptr;
  uint3 block{};
  uint32_t block_number = 0;
  bool has_acquired = false;     // a global atomic was done by this block
  int n_threads = 0, n_ended = 0, n_at_barrier = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<uint8_t> block_released;  // blocks of this launch that did a global atomic
  boost::context::detail::fcontext_t scheduler = nullptr;
  bool is_aborted = false;
  cudaError_t error = cudaSuccess;
  uintptr_t stacks_begin = 0, stacks_bytes = 0, stack_stride = 0;
  uintptr_t shared_begin = 0, shared_bytes = 0;  // this OS thread's thread_locals
  uintptr_t dynamic_begin = 0, dynamic_end = 0;  // what the launch asked for
  uint8_t written_mark = 0;
  std::vector<uint8_t> written;                  // per byte of shared memory: written_mark where this block wrote
  std::vector<SharedByte> shared_users;
  uint32_t interval = 1;                         // counts barriers and blocks
  uintptr_t image_begin = 0, image_end = 0;      // the program's own constants and globals
};

extern thread_local Fiber* current_fiber;
extern thread_local Runner* current_runner;
[[noreturn]] void abort_launch(cudaError_t error);

}  // namespace simt
