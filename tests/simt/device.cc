// The device as such: errors, properties, memory given out.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "streams.h"

namespace simt {
namespace {

// Settings of a process: TANDEM_SIMT="name value ..." always; the first line of the file TANDEM_SIMT_FAULTS, which
// each start takes away.
void set_option(Options& o, const std::string& name, const std::string& value) {
  const int64_t n = std::atoll(value.c_str());
  if (name == "device_bytes") o.device_bytes = static_cast<size_t>(n);
  else if (name == "n_devices") o.n_devices = static_cast<int>(n);
  else if (name == "order_seed") o.order_seed = static_cast<uint64_t>(n);
  else if (name == "runs_late") o.runs_late = n != 0;
  else if (name == "is_integrated") o.is_integrated = n != 0;
  else if (name == "fail_malloc_at") o.fail_malloc_at = n;
  else if (name == "sticky_at_launch") o.sticky_at_launch = n;
  else if (name == "sticky_error") o.sticky_error = static_cast<int>(n);
  else if (name == "hang_at_launch") o.hang_at_launch = n;
  else if (name == "lose_at_launch") o.lose_at_launch = n;
  else if (name == "is_driver_missing") o.is_driver_missing = n != 0;
  else if (name == "slow_kernel") o.slow_kernel = value;
  else if (name == "slow_us") o.slow_us = n;
  else if (name == "other_process_bytes") o.other_process_bytes = static_cast<size_t>(n);
  else {
    std::fprintf(stderr, "stand-in device: no such option: %s\n", name.c_str());
    std::abort();
  }
}

void set_options(Options& o, const std::string& line) {
  std::istringstream in(line);
  for (std::string name, value; in >> name >> value;) set_option(o, name, value);
}

void read_environment() {
  static bool is_read = false;
  if (is_read) return;
  is_read = true;
  Options& o = machine().options;
  if (const char* text = std::getenv("TANDEM_SIMT")) set_options(o, text);
  if (o.slow_us > 0) (void)function_name(nullptr);  // reads the names while the process may still open files
  const char* path = std::getenv("TANDEM_SIMT_FAULTS");
  if (path == nullptr) return;
  std::ifstream in(path);
  std::string first, rest;
  if (!std::getline(in, first)) return;
  for (std::string line; std::getline(in, line);) rest += line + "\n";
  in.close();
  std::ofstream(path, std::ios::trunc) << rest;
  set_options(o, first);
}

int visible_devices() {
  const Options& o = machine().options;
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) return o.n_devices;
  int n = 0;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    char* end = nullptr;
    const long index = std::strtol(item.c_str(), &end, 10);
    if (item.empty() || *end != 0 || index < 0 || index >= o.n_devices) break;
    ++n;
  }
  return n;
}

cudaError_t allocate(void** p, size_t n_bytes) {
  Machine& m = machine();
  *p = nullptr;
  if (m.options.fail_malloc_at > 0 && --m.options.fail_malloc_at == 0) return cudaErrorMemoryAllocation;
  const size_t used = static_cast<size_t>(m.counters.device_bytes_used) + m.options.other_process_bytes;
  if (n_bytes == 0) return cudaSuccess;
  if (used > m.options.device_bytes || n_bytes > m.options.device_bytes - used) return cudaErrorMemoryAllocation;
  const uintptr_t begin = m.device_next;
  const size_t with_gap = (n_bytes + 4095 + 256) / 4096 * 4096 + 4096;
  if (begin + with_gap > m.device_begin + kDeviceSpan) return cudaErrorMemoryAllocation;
  m.device_next += with_gap;
  Allocation a;
  a.begin = begin, a.end = begin + n_bytes;
  m.allocations.push_back(a);
  for (uintptr_t at = begin; at < a.end; at += kGranule) m.granules[(at - m.device_begin) / kGranule].allocation = static_cast<uint32_t>(m.allocations.size() - 1);
  ++m.counters.mallocs;
  m.counters.device_bytes_used += static_cast<int64_t>(n_bytes);
  m.counters.device_bytes_peak = std::max(m.counters.device_bytes_peak, m.counters.device_bytes_used);
  *p = reinterpret_cast<void*>(begin);
  return cudaSuccess;
}

cudaError_t release(void* p) {
  Machine& m = machine();
  const uintptr_t a = reinterpret_cast<uintptr_t>(p);
  if (p == nullptr) return cudaSuccess;
  if (!m.is_device(a)) return cudaErrorInvalidValue;
  Allocation& held = m.allocations[m.granules[(a - m.device_begin) / kGranule].allocation];
  if (held.begin != a || held.is_freed) return cudaErrorInvalidValue;
  held.is_freed = true;
  m.counters.device_bytes_used -= static_cast<int64_t>(held.end - held.begin);
  // Gone for good: also code that is not instrumented finds nothing there.
  mmap(reinterpret_cast<void*>(held.begin), (held.end - held.begin + 4095) / 4096 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return cudaSuccess;
}

}  // namespace

void reset() {
  Machine& m = machine();
  std::lock_guard lock(m.mutex);
  for (Allocation& a : m.allocations) {
    if (a.begin != 0 && !a.is_freed) release(reinterpret_cast<void*>(a.begin));
  }
  for (const HostRange& h : m.host_ranges) {
    if (!h.is_registered) std::free(reinterpret_cast<void*>(h.begin));
  }
  m.host_ranges.clear();
  m.pending_host.clear();
  for (auto& s : streams()) {
    const int index = s->index;
    const uint32_t issued = s->issued;
    *s = CUstream_st{};
    s->index = index, s->issued = s->done = issued;
    s->is_destroyed = index != 0;
  }
  m.sticky = m.last = cudaSuccess;
  m.is_lost = false;
  m.reports.clear();
  m.counters = Counters{};
  m.options = Options{};
  clear_traffic();
}

}  // namespace simt

using namespace simt;

#define SIMT_ENTER()                                         \
  std::lock_guard lock(machine().mutex);                     \
  if (cudaError_t error = enter(); error != cudaSuccess) return leave(error)

namespace {
struct ErrorRow {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorRow kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorEccUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};
const ErrorRow* error_row(cudaError_t error) {
  for (const ErrorRow& r : kErrors) {
    if (r.error == error) return &r;
  }
  return nullptr;
}
}  // namespace

extern "C" {

const char* cudaGetErrorString(cudaError_t error) { return error_row(error) != nullptr ? error_row(error)->text : "unrecognized error code"; }
const char* cudaGetErrorName(cudaError_t error) { return error_row(error) != nullptr ? error_row(error)->name : "cudaErrorOther"; }
cudaError_t cudaPeekAtLastError() {
  std::lock_guard lock(machine().mutex);
  if (machine().sticky != cudaSuccess) return machine().sticky;
  return machine().last;
}
cudaError_t cudaGetLastError() {
  std::lock_guard lock(machine().mutex);
  const cudaError_t error = cudaPeekAtLastError();
  machine().last = cudaSuccess;
  return error;
}
cudaError_t cudaDriverGetVersion(int* version) {
  read_environment();
  *version = machine().options.is_driver_missing ? 0 : CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  read_environment();
  *count = 0;
  SIMT_ENTER();
  *count = visible_devices();
  return *count > 0 ? cudaSuccess : leave(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  read_environment();
  SIMT_ENTER();
  return device >= 0 && device < visible_devices() ? cudaSuccess : leave(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  SIMT_ENTER();
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned) {
  SIMT_ENTER();
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
  std::lock_guard lock(machine().mutex);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  read_environment();
  SIMT_ENTER();
  if (device < 0 || device >= visible_devices()) return leave(cudaErrorInvalidDevice);
  const Options& o = machine().options;
  *p = {};
  std::snprintf(p->name, sizeof p->name, "%s", o.name);
  p->totalGlobalMem = o.device_bytes;
  p->sharedMemPerBlock = 48 << 10;
  cudaDeviceGetAttribute(reinterpret_cast<int*>(&p->sharedMemPerBlockOptin), cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  p->warpSize = 32, p->maxThreadsPerBlock = kMaxBlockThreads, p->maxThreadsPerMultiProcessor = 1536;
  p->major = o.sm_major, p->minor = o.sm_minor, p->multiProcessorCount = o.n_multiprocessors;
  p->integrated = o.is_integrated, p->canMapHostMemory = 1, p->l2CacheSize = 24 << 20, p->memoryBusWidth = 128, p->asyncEngineCount = 2;
  p->pciBusID = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  SIMT_ENTER();
  const Options& o = machine().options;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = kMaxBlockThreads; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = o.sm_major == 7 ? 64 << 10 : o.sm_major == 8 && o.sm_minor == 0 ? 163 << 10 : o.sm_major == 9 || o.sm_major == 10 ? 227 << 10 : 99 << 10;
      break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = o.n_multiprocessors; break;
    case cudaDevAttrIntegrated: *value = o.is_integrated; break;
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 1536; break;
    case cudaDevAttrL2CacheSize: *value = 24 << 20; break;
    case cudaDevAttrComputeCapabilityMajor: *value = o.sm_major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = o.sm_minor; break;
    case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
    default: return leave(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  SIMT_ENTER();
  const Machine& m = machine();
  const size_t used = static_cast<size_t>(m.counters.device_bytes_used) + m.options.other_process_bytes;
  *total_bytes = m.options.device_bytes;
  *free_bytes = used < m.options.device_bytes ? m.options.device_bytes - used : 0;
  return cudaSuccess;
}

cudaError_t simtMalloc(void** p, size_t n_bytes) {
  SIMT_ENTER();
  return leave(allocate(p, n_bytes));
}
cudaError_t cudaFree(void* p) {
  std::lock_guard lock(machine().mutex);
  cudaError_t error = enter();
  if (error == cudaSuccess) cudaDeviceSynchronize();  // as CUDA does
  const cudaError_t freed = p == nullptr ? cudaSuccess : release(p);
  return leave(error != cudaSuccess ? error : freed);
}
cudaError_t simtMallocAsync(void** p, size_t n_bytes, cudaStream_t) {
  SIMT_ENTER();
  return leave(allocate(p, n_bytes));
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  SIMT_ENTER();
  CUstream_st* s = stream_of(stream);
  if (s->capture != nullptr) return leave(cudaErrorStreamCaptureUnsupported);
  enqueue(s, {0, [p] { release(p); }, -1, 0});
  return cudaSuccess;
}
cudaError_t simtHostAlloc(void** p, size_t n_bytes, unsigned) {
  SIMT_ENTER();
  ++machine().counters.host_allocs;
  *p = std::aligned_alloc(4096, (n_bytes + 4095) / 4096 * 4096);
  if (*p == nullptr) return leave(cudaErrorMemoryAllocation);
  const uintptr_t a = reinterpret_cast<uintptr_t>(*p);
  machine().host_ranges.push_back({a, a + n_bytes, false});
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  SIMT_ENTER();
  auto& ranges = machine().host_ranges;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].begin != reinterpret_cast<uintptr_t>(p) || ranges[i].is_registered) continue;
    cudaDeviceSynchronize();
    ranges.erase(ranges.begin() + static_cast<ptrdiff_t>(i));
    std::free(p);
    return cudaSuccess;
  }
  return leave(cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* p, size_t n_bytes, unsigned) {
  SIMT_ENTER();
  const uintptr_t a = reinterpret_cast<uintptr_t>(p);
  if (p == nullptr || n_bytes == 0) return leave(cudaErrorInvalidValue);
  for (const HostRange& h : machine().host_ranges) {
    if (a < h.end && a + n_bytes > h.begin) return leave(cudaErrorHostMemoryAlreadyRegistered);
  }
  ++machine().counters.host_registers;
  machine().host_ranges.push_back({a, a + n_bytes, true});
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  SIMT_ENTER();
  const size_t n = std::erase_if(machine().host_ranges, [&](const HostRange& h) { return h.is_registered && h.begin == reinterpret_cast<uintptr_t>(p); });
  return n > 0 ? cudaSuccess : leave(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  SIMT_ENTER();
  if (!is_pinned(reinterpret_cast<uintptr_t>(host), 1)) return leave(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  SIMT_ENTER();
  const uintptr_t a = reinterpret_cast<uintptr_t>(p);
  const bool on_device = machine().is_device(a), pinned = is_pinned(a, 1);
  *out = {on_device ? cudaMemoryTypeDevice : pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered, 0,
          on_device || pinned ? const_cast<void*>(p) : nullptr, on_device ? nullptr : const_cast<void*>(p)};
  return cudaSuccess;
}

}  // extern "C"
