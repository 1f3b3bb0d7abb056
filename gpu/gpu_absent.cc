// In place of this room where CUDA is not built in.
#include "gpu/gpu_backend.h"

namespace tandem {
namespace {
Status absent() {
  return unavailable("this worker was built without CUDA; tandem-worker-cuda has it");
}
}  // namespace

Result<GpuFacts> open_gpu(int /*index*/) { return absent(); }
Result<GpuMemory> plan_gpu_memory(const ModelConfig& /*config*/, const ModelWeights& /*weights*/, const GpuFacts& /*gpu*/,
                                  const GpuOptions& /*options*/) {
  return absent();
}
Result<std::unique_ptr<Backend>> create_gpu_backend(const ModelConfig& /*config*/, const ModelWeights& /*weights*/,
                                                    const GpuFacts& /*gpu*/, GpuOptions /*options*/) {
  return absent();
}

}  // namespace tandem
