// Products with the lean form of nested Q8_0 weights: the compiled forms of matvec_body.cuh.
#include "kernels/matvec_body.cuh"

namespace tandem {

cudaError_t launch_matvec_kQ8_0Lean(const MatvecArgs& args, DotPath path, int64_t n_pairs, int threads, cudaStream_t stream) {
  return launch_matvec_type<GgmlType::kQ8_0Lean>(args, path, n_pairs, threads, stream);
}

}  // namespace tandem
