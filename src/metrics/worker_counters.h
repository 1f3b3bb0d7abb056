// Turns a worker's counters since its start (ipc::Heartbeat) into metrics that only rise: adds what
// came since the last heartbeat of the same worker. Confined to the supervisor's loop thread.
#pragma once

#include "ipc/messages.h"
#include "metrics/metrics.h"

namespace tandem {

class WorkerCounters {
 public:
  explicit WorkerCounters(Metrics* metrics) : metrics_(metrics) {}
  void on_heartbeat(const ipc::Heartbeat& now);
  void on_worker_end();  // gauges fall to zero; the next worker counts from zero

 private:
  Metrics* metrics_;
  ipc::Heartbeat last_;
};

}  // namespace tandem
