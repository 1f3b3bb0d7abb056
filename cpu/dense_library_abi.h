// What crosses the border to oneDNN 2 (its C interface, which is stable within a major version): numbers and functions.
// Descriptors are filled and read by the library alone, so only their sizes matter here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tandem::dnnl_abi {

constexpr int kCpu = 1;            // dnnl_cpu
constexpr int kBf16 = 2, kF32 = 3;  // dnnl_bf16, dnnl_f32
constexpr int kAnyFormat = 1;      // dnnl_format_tag_any
constexpr int kWeightsDesc = 131;  // dnnl_query_weights_md
constexpr unsigned kDefaultStream = 1;
constexpr int kSource = 1, kDestination = 17, kWeights = 33;  // DNNL_ARG_*
constexpr int kFrom = 1, kTo = 17;
constexpr size_t kMaxDims = 12;  // DNNL_MAX_NDIMS

using Handle = void*;
using Dims = int64_t[kMaxDims];
struct alignas(8) MemoryDesc {
  uint8_t bytes[696];
};
struct alignas(8) OpDesc {
  uint8_t bytes[2800];  // dnnl_matmul_desc_t
};
struct Argument {
  int which;
  Handle memory;
};
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime, gpu_runtime;
};

struct Functions {
  const Version* (*version)();
  int (*engine_create)(Handle* engine, int kind, size_t index);
  int (*engine_destroy)(Handle engine);
  int (*stream_create)(Handle* stream, Handle engine, unsigned flags);
  int (*stream_wait)(Handle stream);
  int (*stream_destroy)(Handle stream);
  int (*memory_desc_init_by_strides)(MemoryDesc* desc, int n_dims, const Dims dims, int type, const Dims strides);
  int (*memory_desc_init_by_tag)(MemoryDesc* desc, int n_dims, const Dims dims, int type, int tag);
  size_t (*memory_desc_get_size)(const MemoryDesc* desc);
  int (*memory_create)(Handle* memory, const MemoryDesc* desc, Handle engine, void* data);
  int (*memory_destroy)(Handle memory);
  int (*matmul_desc_init)(OpDesc* desc, const MemoryDesc* source, const MemoryDesc* weights, const MemoryDesc* bias,
                          const MemoryDesc* destination);
  int (*reorder_primitive_desc_create)(Handle* desc, const MemoryDesc* from, Handle from_engine, const MemoryDesc* to,
                                       Handle to_engine, Handle attributes);
  int (*primitive_desc_create)(Handle* desc, const OpDesc* op, Handle attributes, Handle engine, Handle hint);
  const void* (*primitive_desc_query_md)(Handle desc, int what, int index);
  int (*primitive_desc_destroy)(Handle desc);
  int (*primitive_create)(Handle* primitive, Handle desc);
  int (*primitive_execute)(Handle primitive, Handle stream, int n_arguments, const Argument* arguments);
  int (*primitive_destroy)(Handle primitive);

  // find(symbol) -> address or null. Returns the first symbol that is missing, or null.
  template <typename Find>
  const char* resolve(const Find& find) {
    const char* missing = nullptr;
    const auto set = [&](auto* function, const char* symbol) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(find(symbol));
      if (!*function && !missing) missing = symbol;
    };
#define TANDEM_DNNL(name) set(&name, "dnnl_" #name)
    TANDEM_DNNL(version), TANDEM_DNNL(engine_create), TANDEM_DNNL(engine_destroy), TANDEM_DNNL(stream_create);
    TANDEM_DNNL(stream_wait), TANDEM_DNNL(stream_destroy), TANDEM_DNNL(memory_desc_init_by_strides);
    TANDEM_DNNL(memory_desc_init_by_tag), TANDEM_DNNL(memory_desc_get_size), TANDEM_DNNL(memory_create);
    TANDEM_DNNL(memory_destroy), TANDEM_DNNL(matmul_desc_init), TANDEM_DNNL(reorder_primitive_desc_create);
    TANDEM_DNNL(primitive_desc_create), TANDEM_DNNL(primitive_desc_query_md), TANDEM_DNNL(primitive_desc_destroy);
    TANDEM_DNNL(primitive_create), TANDEM_DNNL(primitive_execute), TANDEM_DNNL(primitive_destroy);
#undef TANDEM_DNNL
    return missing;
  }
};

}  // namespace tandem::dnnl_abi
