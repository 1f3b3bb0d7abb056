// Finds driver and device. The runtime answers "driver insufficient" to a missing and to an old driver alike: the
// driver library itself tells them apart.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "gpu/cuda_check.h"
#include "gpu/gpu_backend.h"

namespace tandem {
namespace {

constexpr int kNeededCuda = 13000;  // the driver's own number for what it supports: 13.0
constexpr const char* kDriverLibrary = "libcuda.so.1";
constexpr const char* kManagementLibrary = "libnvidia-ml.so.1";

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;
Library open_library(const char* name) { return Library(dlopen(name, RTLD_NOW | RTLD_LOCAL)); }

template <typename Function>
Function* symbol(const Library& library, const char* name) {
  return library ? reinterpret_cast<Function*>(dlsym(library.get(), name)) : nullptr;
}

std::string cuda_version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

Result<int> driver_cuda_version() {
  const Library driver = open_library(kDriverLibrary);
  if (!driver) {
    const char* why = dlerror();
    return unavailable(fmt::format("no NVIDIA driver: {}; install driver {} or newer", why ? why : kDriverLibrary, kMinDriver));
  }
  const auto get_version = symbol<int(int*)>(driver, "cuDriverGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0)
    return unavailable(fmt::format("{} does not tell its version; install driver {} or newer", kDriverLibrary, kMinDriver));
  return version;
}

// "580.95.05", or "".
std::string driver_name() {
  const Library management = open_library(kManagementLibrary);
  const auto init = symbol<int()>(management, "nvmlInit_v2");
  const auto get = symbol<int(char*, unsigned)>(management, "nvmlSystemGetDriverVersion");
  const auto shutdown = symbol<int()>(management, "nvmlShutdown");
  char text[96] = "";
  if (init == nullptr || get == nullptr || init() != 0) return "";
  if (get(text, sizeof text) != 0) text[0] = 0;
  if (shutdown != nullptr) shutdown();
  return text;
}

Status no_device(cudaError_t error) {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    return unavailable(fmt::format("CUDA_VISIBLE_DEVICES=\"{}\" names no device of this machine", visible));
  return unavailable(fmt::format("no device: {} ({})", cudaGetErrorName(error), cudaGetErrorString(error)));
}

}  // namespace

Result<GpuFacts> open_gpu(int index) {
  CHECK_ASSIGN(const int version, driver_cuda_version());
  GpuFacts gpu;
  gpu.driver = driver_name();
  if (version < kNeededCuda) {
    return unavailable(fmt::format("the NVIDIA driver{}{} is too old: it supports CUDA {}, needed is {}; install driver {} or newer",
                                   gpu.driver.empty() ? "" : " ", gpu.driver, cuda_version(version), cuda_version(kNeededCuda), kMinDriver));
  }
  if (gpu.driver.empty()) gpu.driver = "CUDA " + cuda_version(version);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) return no_device(error);
  if (error != cudaSuccess) return cuda_status(error, "cudaGetDeviceCount");
  if (index >= count)
    return invalid_argument(fmt::format("gpu.device is {}, this machine shows {} device{}", index, count, count == 1 ? "" : "s"));
  CUDA_OK(cudaSetDevice(index));
  CUDA_OK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
  cudaDeviceProp properties;
  CUDA_OK(cudaGetDeviceProperties(&properties, index));
  size_t free_bytes = 0, total_bytes = 0;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));  // makes the context
  gpu.index = index;
  gpu.name = properties.name;
  gpu.sm = properties.major * 10 + properties.minor;
  gpu.total_bytes = static_cast<int64_t>(total_bytes);
  gpu.free_bytes = static_cast<int64_t>(free_bytes);
  gpu.is_integrated = properties.integrated != 0;
  if (gpu.sm < 75)
    return unavailable(fmt::format("{} has compute capability {}.{}, 7.5 is the least", gpu.name, properties.major, properties.minor));
  return gpu;
}

}  // namespace tandem
