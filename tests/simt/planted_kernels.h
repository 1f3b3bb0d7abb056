// Kernels with a fault each, and their sound twins, launched by the stand-in's own tests.
#pragma once

#include <cstdint>

#include "cuda_runtime.h"

namespace planted {

enum class Kind {
  kSum,                   // sound: one sum a block by shuffles and shared memory
  kBarrierInBranch,       // half of the threads wait at another barrier
  kBarrierMissed,         // half of a warp waits for lanes that wait at a barrier
  kMaskNamesEnded,        // a shuffle for lanes that have returned
  kReadBeyond, kWriteBeyond, kReadBefore,
  kMisaligned16, kMisaligned4,
  kUnwrittenStatic, kUnwrittenDynamic, kDynamicBeyond,
  kSharedRaceWrite,       // two threads write one word
  kSharedRaceRead,        // the barrier between write and read is missing
  kBlockRaceRead,         // a block reads what another wrote
  kLastBlock,             // sound: after a fence and an atomic the last block reads all
  kDeepStack,
  kTrap,
  kCopyWide,              // sound: out[i] = in[i], 16 bytes a thread
  kCopyStrided,           // 4 bytes a thread, 128 apart
};

// in, out: device memory of n floats; n_threads a block.
cudaError_t launch(Kind kind, const float* in, float* out, unsigned* counter, int n, int n_blocks, int n_threads, cudaStream_t stream);
// Host code, observed: reads, and writes, one float.
float host_read(const float* p);
void host_write(float* p, float value);

}  // namespace planted
