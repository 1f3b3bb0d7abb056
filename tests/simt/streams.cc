// Streams and events: what is enqueued, in which order it runs, who has seen what end.
#include "streams.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace simt {

std::vector<std::unique_ptr<CUstream_st>>& streams() {
  static auto& all = *new std::vector<std::unique_ptr<CUstream_st>>;
  if (all.empty()) all.push_back(std::make_unique<CUstream_st>());
  return all;
}

CUstream_st* stream_of(cudaStream_t s) { return s == nullptr ? streams()[0].get() : s; }

namespace {

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

void join(uint32_t* into, const uint32_t* from) {
  for (int i = 0; i < kMaxStreams; ++i) into[i] = std::max(into[i], from[i]);
}

bool is_ready(const CUstream_st& s) {
  if (s.queue.empty() || s.is_hung) return false;
  const SimtItem& item = s.queue.front();
  return item.wait_stream < 0 || streams()[static_cast<size_t>(item.wait_stream)]->done >= item.wait_number;
}

void run_front(CUstream_st* s) {
  SimtItem item = std::move(s->queue.front());
  s->queue.pop_front();
  if (item.run) item.run();
  if (!s->is_hung) s->done = item.number;
}

// Runs one item of some stream that can. False: none can.
bool run_some() {
  std::vector<CUstream_st*> ready;
  for (auto& s : streams()) {
    if (is_ready(*s)) ready.push_back(s.get());
  }
  if (ready.empty()) return false;
  run_front(ready[machine().draw() % ready.size()]);
  return true;
}

void hang_for_ever() {
  Machine& m = machine();
  m.mutex.unlock();
  for (;;) sleep(1000);
}

}  // namespace

void enqueue(CUstream_st* s, SimtItem item) {
  Machine& m = machine();
  item.number = ++s->issued;
  // The default stream and blocking streams wait for each other, as CUDA has it.
  if (s->index == 0) {
    for (auto& other : streams()) {
      if (other->index == 0 || other->is_non_blocking) continue;
      s->seen[other->index] = std::max(s->seen[other->index], other->issued);
      join(s->seen, other->seen);
    }
  } else if (!s->is_non_blocking) {
    s->seen[0] = std::max(s->seen[0], streams()[0]->issued);
    join(s->seen, streams()[0]->seen);
  }
  s->queue.push_back(std::move(item));
  if (m.options.runs_late && s->index != 0) return;
  while (run_some()) {
  }
}

cudaError_t drain(CUstream_st* s, uint32_t number) {
  while (s->done < number) {
    if (!run_some()) hang_for_ever();
  }
  return machine().sticky;
}

void host_has_seen(CUstream_st* s, uint32_t number, const uint32_t* seen) {
  Machine& m = machine();
  m.host_seen[s->index] = std::max(m.host_seen[s->index], number);
  join(m.host_seen, seen);
  std::erase_if(m.pending_host, [&](const PendingHost& p) { return m.host_seen[p.stream] >= p.number; });
}

cudaError_t enter() {
  Machine& m = machine();
  start_machine();
  if (m.options.is_driver_missing) return cudaErrorInsufficientDriver;
  if (m.is_lost) return cudaErrorUnknown;
  return m.sticky;
}

cudaError_t leave(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) machine().last = error;
  return error;
}

}  // namespace simt

using namespace simt;

#define SIMT_ENTER()                                         \
  std::lock_guard lock(machine().mutex);                     \
  if (cudaError_t error = enter(); error != cudaSuccess) return leave(error)

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  SIMT_ENTER();
  auto& all = streams();
  for (auto& s : all) {
    if (!s->is_destroyed) continue;
    // The numbers go on, so that what an earlier owner did stays ordered.
    s->is_destroyed = false;
    s->is_non_blocking = (flags & cudaStreamNonBlocking) != 0;
    *out = s.get();
    return cudaSuccess;
  }
  if (all.size() >= kMaxStreams) return leave(cudaErrorMemoryAllocation);
  all.push_back(std::make_unique<CUstream_st>());
  all.back()->index = static_cast<int>(all.size()) - 1;
  all.back()->is_non_blocking = (flags & cudaStreamNonBlocking) != 0;
  *out = all.back().get();
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithFlags(out, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) { return cudaStreamCreateWithFlags(out, flags); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  SIMT_ENTER();
  *least = 0, *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  SIMT_ENTER();
  if (s == nullptr) return leave(cudaErrorInvalidResourceHandle);
  drain(s, s->issued);
  s->is_destroyed = true;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  SIMT_ENTER();
  CUstream_st* s = stream_of(handle);
  if (s->capture != nullptr) return leave(cudaErrorStreamCaptureUnsupported);
  ++machine().counters.synchronizes;
  const cudaError_t error = drain(s, s->issued);
  host_has_seen(s, s->issued, s->seen);
  return leave(error);
}
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  SIMT_ENTER();
  CUstream_st* s = stream_of(handle);
  if (machine().options.runs_late && machine().draw() % 2 == 0) run_some();
  if (s->done < s->issued) return cudaErrorNotReady;
  host_has_seen(s, s->issued, s->seen);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  SIMT_ENTER();
  ++machine().counters.synchronizes;
  for (auto& s : streams()) {
    drain(s.get(), s->issued);
    host_has_seen(s.get(), s->issued, s->seen);
  }
  return leave(machine().sticky);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  SIMT_ENTER();
  *out = new CUevent_st;
  (*out)->is_timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* out) { return cudaEventCreateWithFlags(out, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  SIMT_ENTER();
  if (e->is_recorded) drain(streams()[static_cast<size_t>(e->stream)].get(), e->number);
  delete e;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t handle) {
  SIMT_ENTER();
  CUstream_st* s = stream_of(handle);
  e->stream = s->index;
  e->capture = s->capture;
  if (s->capture != nullptr) return cudaSuccess;
  enqueue(s, {0, [e] { e->time_ns = now_ns(); }, -1, 0});
  e->is_recorded = true;
  e->number = s->issued;
  std::copy_n(s->seen, kMaxStreams, e->seen);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned) {
  SIMT_ENTER();
  CUstream_st* s = stream_of(handle);
  if (e->capture != nullptr) {  // a fork, or the join that ends one
    CUstream_st* other = streams()[static_cast<size_t>(e->stream)].get();
    if (s->capture == nullptr) {
      s->capture = e->capture;
      s->has_joined = false;
    } else if (s->capture == e->capture) {
      other->has_joined = true;
    } else {
      return leave(cudaErrorStreamCaptureInvalidated);
    }
    return cudaSuccess;
  }
  if (s->capture != nullptr) return leave(cudaErrorStreamCaptureUnsupported);
  if (!e->is_recorded) return cudaSuccess;
  s->seen[e->stream] = std::max(s->seen[e->stream], e->number);
  join(s->seen, e->seen);
  enqueue(s, {0, nullptr, e->stream == s->index ? -1 : e->stream, e->number});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  SIMT_ENTER();
  ++machine().counters.synchronizes;
  if (!e->is_recorded) return cudaSuccess;
  CUstream_st* s = streams()[static_cast<size_t>(e->stream)].get();
  const cudaError_t error = drain(s, e->number);
  host_has_seen(s, e->number, e->seen);
  return leave(error);
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  SIMT_ENTER();
  if (!e->is_recorded) return cudaSuccess;
  CUstream_st* s = streams()[static_cast<size_t>(e->stream)].get();
  if (machine().options.runs_late && machine().draw() % 2 == 0) run_some();
  if (s->done < e->number) return cudaErrorNotReady;
  host_has_seen(s, e->number, e->seen);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  SIMT_ENTER();
  if (!start->is_recorded || !end->is_recorded || !start->is_timed || !end->is_timed) return leave(cudaErrorInvalidResourceHandle);
  *ms = static_cast<float>(end->time_ns - start->time_ns) * 1e-6f;
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t fn, void* user) {
  SIMT_ENTER();
  CUstream_st* s = stream_of(handle);
  if (s->capture != nullptr) return leave(cudaErrorStreamCaptureUnsupported);
  enqueue(s, {0, [fn, user] { fn(user); }, -1, 0});
  return cudaSuccess;
}

}  // extern "C"
