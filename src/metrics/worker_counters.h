// Turns a worker's counters since its start (ipc::Heartbeat) into metrics that only rise: adds what
// came since the last heartbeat of the same worker. Confined to the supervisor's loop thread.
#pragma once

#include <map>

#include "ipc/messages.h"
#include "metrics/metrics.h"

namespace tandem {

// Gauges over all workers: pages and batches add up. Confined to the supervisor's loop thread.
class WorkerGauges {
 public:
  explicit WorkerGauges(Metrics* metrics) : metrics_(metrics) {}
  void set(const void* worker, const ipc::Heartbeat& now);
  void clear(const void* worker);

 private:
  void show();
  Metrics* metrics_;
  std::map<const void*, ipc::Heartbeat> latest_;
};

class WorkerCounters {
 public:
  WorkerCounters(Metrics* metrics, WorkerGauges* gauges) : metrics_(metrics), gauges_(gauges) {}
  void on_heartbeat(const ipc::Heartbeat& now);
  void on_worker_end();  // its gauges fall to zero; the next worker counts from zero

 private:
  Metrics* metrics_;
  WorkerGauges* gauges_;
  ipc::Heartbeat last_;
};

}  // namespace tandem
