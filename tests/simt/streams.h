// Streams, events and graphs behind their opaque handles.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "machine.h"

enum class SimtNodeKind { kKernel, kCopy, kFill };

// One thing to do, as enqueued or captured.
struct CUgraphNode_st {
  SimtNodeKind kind = SimtNodeKind::kKernel;
  simt::Launch launch;
  void* to = nullptr;
  const void* from = nullptr;
  size_t n_bytes = 0;
  cudaMemcpyKind direction = cudaMemcpyDefault;
  int value = 0;
  std::vector<char> staged;          // pageable source
  std::vector<void*> param_pointers;  // for cudaGraphKernelNodeGetParams
  int index = 0;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};
struct CUgraphExec_st {
  std::vector<CUgraphNode_st> nodes;
};

struct CUevent_st {
  bool is_recorded = false, is_timed = true;
  int stream = 0;
  uint32_t number = 0;
  uint32_t seen[simt::kMaxStreams] = {};
  int64_t time_ns = 0;
  CUgraph_st* capture = nullptr;
};

struct SimtItem {
  uint32_t number = 0;
  std::function<void()> run;           // may be empty
  int wait_stream = -1;                // not before that stream has done
  uint32_t wait_number = 0;
};

struct CUstream_st {
  int index = 0;
  bool is_non_blocking = false, is_hung = false, is_destroyed = false;
  uint32_t issued = 0, done = 0;
  uint32_t seen[simt::kMaxStreams] = {};
  std::deque<SimtItem> queue;
  CUgraph_st* capture = nullptr;
  bool is_capture_origin = false, has_joined = true;
};

namespace simt {

// All streams by index; 0 is the default stream.
std::vector<std::unique_ptr<CUstream_st>>& streams();
CUstream_st* stream_of(cudaStream_t s);
// Every call begins so: the error that sticks, a device that is gone.
cudaError_t enter();
cudaError_t leave(cudaError_t error);  // remembers it for cudaGetLastError
void enqueue(CUstream_st* s, SimtItem item);
cudaError_t drain(CUstream_st* s, uint32_t number);  // until that item is done; waits for ever for one that hangs
void host_has_seen(CUstream_st* s, uint32_t number, const uint32_t* seen);
cudaError_t submit(CUstream_st* s, CUgraphNode_st node);  // enqueue or capture
bool is_pinned(uintptr_t a, size_t n_bytes);

}  // namespace simt
