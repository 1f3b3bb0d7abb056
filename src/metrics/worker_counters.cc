#include "metrics/worker_counters.h"

#include <algorithm>

namespace tandem {
namespace {

// A counter that fell comes from a damaged worker: nothing is added.
uint64_t rise(uint64_t before, uint64_t now) { return now > before ? now - before : 0; }

void set_gauges(const ipc::Heartbeat& h, Metrics* metrics) {
  auto used = static_cast<double>(h.pages_used), free = static_cast<double>(h.pages_free);
  metrics->set(Metric::kKvPages, used, {"used"});
  metrics->set(Metric::kKvPages, free, {"free"});
  metrics->set(Metric::kKvPages, static_cast<double>(h.pages_shared), {"shared"});
  metrics->set(Metric::kKvPages, static_cast<double>(h.pages_swapped), {"swapped"});
  metrics->set(Metric::kKvCacheUsage, used + free > 0 ? used / (used + free) : 0);
  metrics->set(Metric::kBatchSize, h.n_running > 0 ? h.last_batch : 0);
}

}  // namespace

void WorkerCounters::on_heartbeat(const ipc::Heartbeat& now) {
  set_gauges(now, metrics_);
  metrics_->add(Metric::kPreemptions, static_cast<double>(rise(last_.preemptions, now.preemptions)),
                {"recompute"});
  metrics_->add(Metric::kPreemptions, static_cast<double>(rise(last_.swaps, now.swaps)), {"swap"});
  // Single steps aren't reported: their mean stands for each of them, so that count and sum are
  // exact.
  uint64_t steps = std::min<uint64_t>(rise(last_.steps, now.steps), 100'000);
  double sampling = std::max(0.0, now.sampling_seconds - last_.sampling_seconds);
  if (steps > 0)
    metrics_->observe(Metric::kLatency, sampling / static_cast<double>(steps), {"sampling"},
                      static_cast<unsigned>(steps));
  last_ = now;
}

void WorkerCounters::on_worker_end() {
  last_ = {};
  set_gauges(last_, metrics_);
}

}  // namespace tandem
