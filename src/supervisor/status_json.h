// What /status.json shows: a copy of the loop's state, and its JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/service.h"
#include "ipc/messages.h"
#include "requestlog/request_log.h"
#include "supervisor/degradation.h"
#include "supervisor/history.h"
#include "supervisor/host_sensors.h"
#include "supervisor/prompt_placement.h"
#include "supervisor/recent.h"

namespace tandem {

struct LiveRequest {
  std::string id, phase;  // phase: "queued", "prefill", "decode"
  std::string priority;
  int64_t age_ms = 0, prompt_tokens = 0, completion_tokens = 0, n_dispatches = 0;
};

struct WorkerView {
  std::string role, state, cause, last_end;
  int64_t number = 0, pid = 0, restarts = 0;
  uint64_t generation = 0;
  ipc::Heartbeat heartbeat;
  int64_t pool_bytes = 0;
  int64_t device_layers = 0;  // of the model's layers, those on the device
  std::string device, isa, device_trouble;  // where it runs, by which kernels; why not on the device that is wanted for it
};

struct StatusView {
  api::Readiness readiness;
  std::string model_name, model_path;
  std::string model_sha256;  // empty: not known yet
  int64_t model_created_s = 0;
  std::optional<ipc::ModelInfo> model;
  std::vector<WorkerView> workers;
  size_t waiting[3] = {0, 0, 0};  // high, normal, low
  size_t running = 0;
  std::vector<LiveRequest> requests;
  std::vector<HistoryPoint> history;  // oldest first
  std::vector<RecentRequest> recent;  // newest first
  std::vector<Fault> faults;          // newest first
  HostReadings host;
  DegradationView degradation;
  std::string state_dir, log_path;
  int64_t log_budget_bytes = 0, max_queue = 0;
  std::optional<PromptRange> device_prompts;  // lengths that the device computes; none: not decided, or not asked
  bool has_requests = false;  // false: the loop did not answer in time, the copy is a little old
  int64_t started_us = 0, published_us = 0;  // monotonic
};

struct BoxFacts;

const char* readiness_name(
    api::Readiness::State state);  // "ready", "degraded", "warming", "dead", "draining"
std::string status_json(const StatusView& view, const BoxFacts& box,
                        const RequestLogCounters& log, const Status& log_status,
                        int64_t now_us);

}  // namespace tandem
