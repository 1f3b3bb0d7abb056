#include "gpu/step_graph.h"

namespace tandem {

Status StepGraphs::launch(const StepShape& shape, cudaStream_t stream, const std::function<Status()>& enqueue) {
  for (const Entry& e : graphs_) {
    if (e.shape != shape) continue;
    CUDA_OK(cudaGraphLaunch(e.exec.get(), stream));
    return ok_status();
  }
  CudaGraph graph;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const Status captured = enqueue();
  const cudaError_t ended = cudaStreamEndCapture(stream, graph.put());
  CHECK_OK(captured);
  CUDA_OK(ended);
  Entry entry{shape, {}};
  CUDA_OK(cudaGraphInstantiate(entry.exec.put(), graph.get(), 0));
  CUDA_OK(cudaGraphLaunch(entry.exec.get(), stream));
  graphs_.push_back(std::move(entry));
  return ok_status();
}

}  // namespace tandem
