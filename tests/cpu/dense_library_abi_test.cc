// cpu/dense_library_abi.h against the library's own header, where it is installed.
#if __has_include(<dnnl.h>)
#include <dnnl.h>

#include "cpu/dense_library_abi.h"

namespace tandem::dnnl_abi {
#if DNNL_VERSION_MAJOR == 2
static_assert(kCpu == dnnl_cpu && kBf16 == dnnl_bf16 && kF32 == dnnl_f32 && kAnyFormat == dnnl_format_tag_any);
static_assert(kWeightsDesc == dnnl_query_weights_md && kDefaultStream == dnnl_stream_default_flags);
static_assert(kSource == DNNL_ARG_SRC && kDestination == DNNL_ARG_DST && kWeights == DNNL_ARG_WEIGHTS);
static_assert(kFrom == DNNL_ARG_FROM && kTo == DNNL_ARG_TO && kMaxDims == DNNL_MAX_NDIMS);
static_assert(sizeof(MemoryDesc) == sizeof(dnnl_memory_desc_t) && sizeof(OpDesc) == sizeof(dnnl_matmul_desc_t));
static_assert(sizeof(Argument) == sizeof(dnnl_exec_arg_t) && sizeof(Version) == sizeof(dnnl_version_t));
static_assert(sizeof(Dims) == sizeof(dnnl_dims_t));
#endif
}  // namespace tandem::dnnl_abi
#endif
