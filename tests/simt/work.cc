// Kernels, copies and fills: checked, enqueued or captured, carried out. Graphs.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <typeinfo>

#include "fibers.h"
#include "streams.h"

namespace simt {
namespace {

std::map<const void*, KernelType>& kernel_types() {
  static auto& types = *new std::map<const void*, KernelType>;
  return types;
}
std::map<const void*, int>& dynamic_limits() {
  static auto& limits = *new std::map<const void*, int>;
  return limits;
}

constexpr int kDefaultDynamic = 48 << 10;

int dynamic_limit(const void* function) {
  auto it = dynamic_limits().find(function);
  return it == dynamic_limits().end() ? kDefaultDynamic : it->second;
}

// "" or why the device refuses it.
std::string launch_fault(const CUgraphNode_st& n) {
  const Launch& l = n.launch;
  const uint64_t threads = uint64_t{l.block.x} * l.block.y * l.block.z;
  if (threads == 0 || threads > kMaxBlockThreads) return std::to_string(threads) + " threads a block, 1 to 1024 go";
  if (l.block.z > 64) return "a block " + std::to_string(l.block.z) + " deep, 64 go";
  if (l.grid.x == 0 || l.grid.y == 0 || l.grid.z == 0) return "a grid of nothing";
  if (l.grid.x > 0x7fffffffu || l.grid.y > 65535 || l.grid.z > 65535) return "a grid that is too large";
  if (l.dynamic_bytes > static_cast<size_t>(dynamic_limit(l.type->function)))
    return std::to_string(l.dynamic_bytes) + " bytes of dynamic shared memory, " + std::to_string(dynamic_limit(l.type->function)) + " are set for it";
  return "";
}

// Faults that are due with this launch. Returns false when the launch does not run.
bool meet_faults(CUstream_st* s) {
  Machine& m = machine();
  auto is_due = [](int64_t& n) { return n > 0 && --n == 0; };
  if (is_due(m.options.sticky_at_launch)) m.sticky = static_cast<cudaError_t>(m.options.sticky_error);
  if (is_due(m.options.lose_at_launch)) m.is_lost = true;
  if (is_due(m.options.hang_at_launch)) s->is_hung = true;
  return m.sticky == cudaSuccess && !m.is_lost && !s->is_hung;
}

void take_time(const void* function) {
  const Options& o = machine().options;
  if (o.slow_us == 0) return;
  static auto& names = *new std::map<const void*, std::string>;  // to find one takes time of its own
  auto [it, is_new] = names.try_emplace(function);
  if (is_new) it->second = function_name(function);
  if (it->second.find(o.slow_kernel) != std::string::npos) std::this_thread::sleep_for(std::chrono::microseconds(o.slow_us));
}

uint32_t note_operation(CUstream_st* s, uint32_t number, std::string name) {
  Machine& m = machine();
  if (!m.is_instrumented) return 0;
  Operation o;
  o.stream = s->index;
  o.number = number;
  for (int i = 0; i < kMaxStreams; ++i) o.seen[i] = std::max(s->seen[i], m.host_seen[i]);
  o.name = std::move(name);
  m.operations.push_back(std::move(o));
  return static_cast<uint32_t>(m.operations.size() - 1);
}

bool is_on_device(const void* p) { return machine().is_device(reinterpret_cast<uintptr_t>(p)); }

void run_copy(const CUgraphNode_st& n, uint32_t operation) {
  Machine& m = machine();
  const void* from = n.staged.empty() ? n.from : n.staged.data();
  if (is_on_device(n.to) && !check_device_range(reinterpret_cast<uintptr_t>(n.to), n.n_bytes, true, operation)) { m.sticky = cudaErrorIllegalAddress; return; }
  if (is_on_device(from) && !check_device_range(reinterpret_cast<uintptr_t>(from), n.n_bytes, false, operation)) { m.sticky = cudaErrorIllegalAddress; return; }
  if (n.kind == SimtNodeKind::kFill) std::memset(n.to, n.value, n.n_bytes);
  else std::memmove(n.to, from, n.n_bytes);
}

void run_node(CUgraphNode_st& n, CUstream_st* s, uint32_t operation) {
  Machine& m = machine();
  if (m.sticky != cudaSuccess || m.is_lost) return;
  if (n.kind != SimtNodeKind::kKernel) return run_copy(n, operation);
  if (!meet_faults(s)) return;
  take_time(n.launch.type->function);
  static uint32_t next_launch = 0;
  n.launch.id = ++next_launch;
  n.launch.operation = operation;
  if (cudaError_t error = run_launch(&n.launch); error != cudaSuccess) m.sticky = error;
}

void count(const CUgraphNode_st& n) {
  Counters& c = machine().counters;
  if (n.kind == SimtNodeKind::kKernel) ++c.launches;
  if (n.kind != SimtNodeKind::kCopy) return;
  const int64_t bytes = static_cast<int64_t>(n.n_bytes);
  const bool to = is_on_device(n.to), from = is_on_device(n.from);
  if (to && from) ++c.d2d_copies, c.d2d_bytes += bytes;
  else if (to) ++c.h2d_copies, c.h2d_bytes += bytes;
  else if (from) ++c.d2h_copies, c.d2h_bytes += bytes;
}

std::string node_name(const CUgraphNode_st& n) {
  return n.kind == SimtNodeKind::kKernel ? function_name(n.launch.type->function) : n.kind == SimtNodeKind::kCopy ? "a copy" : "a fill";
}

void note_host_memory(CUstream_st* s, const CUgraphNode_st& n, uint32_t number) {
  Machine& m = machine();
  if (!m.is_instrumented || n.kind == SimtNodeKind::kKernel) return;
  auto note = [&](const void* p, bool is_written) {
    const uintptr_t a = reinterpret_cast<uintptr_t>(p);
    m.pending_host.push_back({a, a + n.n_bytes, is_written, s->index, number});
  };
  if (!is_on_device(n.to)) note(n.to, true);
  if (n.kind == SimtNodeKind::kCopy && n.staged.empty() && !is_on_device(n.from)) note(n.from, false);
}

void enqueue_node(CUstream_st* s, CUgraphNode_st node) {
  Machine& m = machine();
  count(node);
  auto shared = std::make_shared<CUgraphNode_st>(std::move(node));
  auto operation = std::make_shared<uint32_t>(0);
  note_host_memory(s, *shared, s->issued + 1);
  // Known before it may run: enqueue() gives it the next number.
  *operation = note_operation(s, s->issued + 1, m.is_instrumented ? node_name(*shared) : std::string());
  enqueue(s, {0, [shared, operation, s] { run_node(*shared, s, *operation); }, -1, 0});
}

}  // namespace

bool is_pinned(uintptr_t a, size_t n_bytes) {
  const Machine& m = machine();
  return std::any_of(m.host_ranges.begin(), m.host_ranges.end(), [&](const HostRange& h) { return a >= h.begin && a + n_bytes <= h.end; });
}

cudaError_t submit(CUstream_st* s, CUgraphNode_st node) {
  Machine& m = machine();
  if (node.kind == SimtNodeKind::kKernel) {
    if (std::string fault = launch_fault(node); !fault.empty()) {
      add_report(Fault::kBadLaunch, node_name(node) + ": " + fault);
      return cudaErrorInvalidConfiguration;
    }
  }
  const bool to_host = node.kind == SimtNodeKind::kCopy && !is_on_device(node.to);
  const bool from_host = node.kind == SimtNodeKind::kCopy && !is_on_device(node.from);
  const bool pageable_to = to_host && !is_pinned(reinterpret_cast<uintptr_t>(node.to), node.n_bytes);
  const bool pageable_from = from_host && !is_pinned(reinterpret_cast<uintptr_t>(node.from), node.n_bytes);
  if (s->capture != nullptr) {
    if (pageable_to || pageable_from) return cudaErrorStreamCaptureUnsupported;
    auto owned = std::make_unique<CUgraphNode_st>(std::move(node));
    owned->index = static_cast<int>(s->capture->nodes.size());
    s->capture->nodes.push_back(std::move(owned));
    return cudaSuccess;
  }
  if (pageable_from) {
    const char* from = static_cast<const char*>(node.from);
    node.staged.assign(from, from + node.n_bytes);
  }
  enqueue_node(s, std::move(node));
  if (pageable_to) {  // CUDA copies to pageable memory before it returns
    const cudaError_t error = drain(s, s->issued);
    host_has_seen(s, s->issued, s->seen);
    return error;
  }
  return m.is_lost ? cudaErrorUnknown : m.sticky;
}

const KernelType* kernel_type(const KernelType& type) {
  std::lock_guard lock(machine().mutex);
  return &kernel_types().emplace(type.function, type).first->second;
}

cudaError_t launch(const cudaLaunchConfig_t* config, const KernelType* type, const void* params) {
  std::lock_guard lock(machine().mutex);
  if (cudaError_t error = enter(); error != cudaSuccess) return leave(error);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttributeID id = config->attrs[i].id;
    if (id != cudaLaunchAttributeIgnore && id != cudaLaunchAttributeProgrammaticStreamSerialization) return leave(cudaErrorInvalidValue);
  }
  CUgraphNode_st node;
  node.launch.type = type;
  node.launch.grid = config->gridDim;
  node.launch.block = config->blockDim;
  node.launch.dynamic_bytes = config->dynamicSmemBytes;
  node.launch.params.assign(static_cast<const char*>(params), static_cast<const char*>(params) + type->param_bytes);
  return leave(submit(stream_of(config->stream), std::move(node)));
}

cudaError_t set_function_attribute(const void* function, cudaFuncAttribute attribute, int value) {
  std::lock_guard lock(machine().mutex);
  if (cudaError_t error = enter(); error != cudaSuccess) return leave(error);
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  int most = 0;
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  if (value < 0 || value > most) return leave(cudaErrorInvalidValue);
  dynamic_limits()[function] = value;
  return cudaSuccess;
}

cudaError_t get_function_attributes(cudaFuncAttributes* out, const void* function) {
  *out = {};
  out->maxThreadsPerBlock = kMaxBlockThreads;
  out->maxDynamicSharedSizeBytes = dynamic_limit(function);
  return cudaSuccess;
}

cudaError_t max_active_blocks(int* n_blocks, const void* function, int block_size, size_t dynamic_bytes) {
  if (block_size < 1 || block_size > kMaxBlockThreads || dynamic_bytes > static_cast<size_t>(dynamic_limit(function))) return leave(cudaErrorInvalidValue);
  const int by_threads = 1536 / block_size, by_memory = static_cast<int>((100u << 10) / std::max<size_t>(dynamic_bytes + 1024, 1));
  *n_blocks = std::max(0, std::min({by_threads, by_memory, 24}));
  return cudaSuccess;
}

}  // namespace simt

using namespace simt;

#define SIMT_ENTER()                                         \
  std::lock_guard lock(machine().mutex);                     \
  if (cudaError_t error = enter(); error != cudaSuccess) return leave(error)

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  SIMT_ENTER();
  const bool to_device = is_on_device(to), from_device = is_on_device(from);
  const bool fits = kind == cudaMemcpyDefault || (kind == cudaMemcpyHostToDevice && to_device && !from_device) ||
                    (kind == cudaMemcpyDeviceToHost && !to_device && from_device) ||
                    (kind == cudaMemcpyDeviceToDevice && to_device && from_device) || (kind == cudaMemcpyHostToHost && !to_device && !from_device);
  if (!fits) return leave(cudaErrorInvalidValue);
  if (n_bytes == 0) return cudaSuccess;
  CUgraphNode_st node;
  node.kind = SimtNodeKind::kCopy;
  node.to = to, node.from = from, node.n_bytes = n_bytes, node.direction = kind;
  return leave(submit(stream_of(stream), std::move(node)));
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = cudaMemcpyAsync(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, n_bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t n_bytes, cudaStream_t stream) {
  SIMT_ENTER();
  if (!is_on_device(to)) return leave(cudaErrorInvalidValue);
  if (n_bytes == 0) return cudaSuccess;
  CUgraphNode_st node;
  node.kind = SimtNodeKind::kFill;
  node.to = to, node.n_bytes = n_bytes, node.value = value;
  return leave(submit(stream_of(stream), std::move(node)));
}
cudaError_t cudaMemset(void* to, int value, size_t n_bytes) {
  const cudaError_t error = cudaMemsetAsync(to, value, n_bytes, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  SIMT_ENTER();
  if (s == nullptr || s->capture != nullptr) return leave(cudaErrorIllegalState);
  s->capture = new CUgraph_st;
  s->is_capture_origin = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  SIMT_ENTER();
  *graph = nullptr;
  if (s == nullptr || s->capture == nullptr || !s->is_capture_origin) return leave(cudaErrorIllegalState);
  CUgraph_st* made = s->capture;
  bool is_joined = true;
  for (auto& other : streams()) {
    if (other->capture != made) continue;
    is_joined = is_joined && (other.get() == s || other->has_joined);
    other->capture = nullptr, other->has_joined = true, other->is_capture_origin = false;
  }
  if (!is_joined) {
    delete made;
    return leave(cudaErrorStreamCaptureUnjoined);
  }
  *graph = made;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  SIMT_ENTER();
  *status = stream_of(s)->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  std::lock_guard lock(machine().mutex);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  SIMT_ENTER();
  ++machine().counters.instantiates;
  *exec = new CUgraphExec_st;
  for (const auto& n : graph->nodes) (*exec)->nodes.push_back(*n);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  std::lock_guard lock(machine().mutex);
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  SIMT_ENTER();
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  SIMT_ENTER();
  CUstream_st* s = stream_of(stream);
  if (s->capture != nullptr) return leave(cudaErrorStreamCaptureUnsupported);
  ++machine().counters.graph_launches;
  machine().counters.graph_nodes += static_cast<int64_t>(exec->nodes.size());
  for (const CUgraphNode_st& n : exec->nodes) enqueue_node(s, n);
  return leave(machine().is_lost ? cudaErrorUnknown : machine().sticky);
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  SIMT_ENTER();
  ++machine().counters.updates;
  *info = {cudaGraphExecUpdateSuccess, nullptr, nullptr};
  auto refuse = [&](cudaGraphExecUpdateResult why) {
    info->result = why;
    return leave(cudaErrorGraphExecUpdateFailure);
  };
  if (exec->nodes.size() != graph->nodes.size()) return refuse(cudaGraphExecUpdateErrorTopologyChanged);
  for (size_t i = 0; i < exec->nodes.size(); ++i) {
    if (exec->nodes[i].kind != graph->nodes[i]->kind) return refuse(cudaGraphExecUpdateErrorNodeTypeChanged);
    if (exec->nodes[i].launch.type != graph->nodes[i]->launch.type) return refuse(cudaGraphExecUpdateErrorFunctionChanged);
  }
  for (size_t i = 0; i < exec->nodes.size(); ++i) exec->nodes[i] = *graph->nodes[i];
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* n_nodes) {
  SIMT_ENTER();
  if (nodes != nullptr) {
    for (size_t i = 0; i < std::min(*n_nodes, graph->nodes.size()); ++i) nodes[i] = graph->nodes[i].get();
  }
  *n_nodes = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  SIMT_ENTER();
  *type = node->kind == SimtNodeKind::kKernel ? cudaGraphNodeTypeKernel : node->kind == SimtNodeKind::kCopy ? cudaGraphNodeTypeMemcpy : cudaGraphNodeTypeMemset;
  return cudaSuccess;
}
cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* out) {
  SIMT_ENTER();
  if (node->kind != SimtNodeKind::kKernel) return leave(cudaErrorInvalidValue);
  const KernelType* type = node->launch.type;
  node->param_pointers.resize(static_cast<size_t>(type->n_params));
  type->scatter(node->launch.params.data(), node->param_pointers.data());
  *out = {const_cast<void*>(type->function), node->launch.grid, node->launch.block, static_cast<unsigned>(node->launch.dynamic_bytes), node->param_pointers.data(), nullptr};
  return cudaSuccess;
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, const cudaKernelNodeParams* p) {
  SIMT_ENTER();
  if (node->kind != SimtNodeKind::kKernel || static_cast<size_t>(node->index) >= exec->nodes.size()) return leave(cudaErrorInvalidValue);
  Launch& l = exec->nodes[static_cast<size_t>(node->index)].launch;
  if (p->func != l.type->function) return leave(cudaErrorInvalidValue);
  ++machine().counters.updates;
  l.grid = p->gridDim, l.block = p->blockDim, l.dynamic_bytes = p->sharedMemBytes;
  l.type->gather(l.params.data(), p->kernelParams);
  if (std::string fault = launch_fault(exec->nodes[static_cast<size_t>(node->index)]); !fault.empty()) {
    add_report(Fault::kBadLaunch, fault);
    return leave(cudaErrorInvalidConfiguration);
  }
  return cudaSuccess;
}

}  // extern "C"
