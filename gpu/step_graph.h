// Graphs of whole steps, one a shape and set of weights: captured the first time it is run, replayed ever after. All that
// changes from step to step (tokens, positions, page tables) lies in device memory that the kernels read, so a graph
// is never captured again. Confined to the engine thread.
#pragma once

#include <functional>
#include <vector>

#include "gpu/device_buffer.h"
#include "gpu/gpu_forward.h"

namespace tandem {

class StepGraphs {
 public:
  // Launches the graph of `shape`; `enqueue` is captured if there is none.
  Status launch(const StepShape& shape, cudaStream_t stream, const std::function<Status()>& enqueue);
  size_t size() const { return graphs_.size(); }
  void clear() { graphs_.clear(); }

 private:
  struct Entry {
    StepShape shape;
    CudaGraphExec exec;
  };
  std::vector<Entry> graphs_;  // a handful
};

}  // namespace tandem
