#include "metrics/worker_counters.h"

#include <algorithm>

namespace tandem {
namespace {

// A counter that fell comes from a damaged worker: nothing is added.
uint64_t rise(uint64_t before, uint64_t now) { return now > before ? now - before : 0; }

}  // namespace

void WorkerGauges::set(const void* worker, const ipc::Heartbeat& now) {
  latest_[worker] = now;
  show();
}

void WorkerGauges::clear(const void* worker) {
  latest_.erase(worker);
  show();
}

void WorkerGauges::show() {
  double used = 0, free = 0, shared = 0, swapped = 0, lent = 0, batch = 0;
  for (const auto& [worker, h] : latest_) {
    used += static_cast<double>(h.pages_used), free += static_cast<double>(h.pages_free);
    shared += static_cast<double>(h.pages_shared), lent += static_cast<double>(h.pages_lent);
    swapped += static_cast<double>(h.pages_swapped);
    if (h.n_running > 0) batch += h.last_batch;
  }
  metrics_->set(Metric::kKvPages, used, {"used"});
  metrics_->set(Metric::kKvPages, free, {"free"});
  metrics_->set(Metric::kKvPages, shared, {"shared"});
  metrics_->set(Metric::kKvPages, swapped, {"swapped"});
  metrics_->set(Metric::kKvPages, lent, {"lent"});
  metrics_->set(Metric::kKvCacheUsage, used + free > 0 ? used / (used + free) : 0);
  metrics_->set(Metric::kBatchSize, batch);
}

void WorkerCounters::on_heartbeat(const ipc::Heartbeat& now) {
  gauges_->set(this, now);
  auto add = [&](Metric metric, uint64_t before, uint64_t after) {
    metrics_->add(metric, static_cast<double>(rise(before, after)));
  };
  add(Metric::kReadoptedPages, last_.pages_readopted, now.pages_readopted);
  add(Metric::kHandoffPages, last_.pages_imported, now.pages_imported);
  add(Metric::kHandoffBytes, last_.bytes_imported, now.bytes_imported);
  metrics_->add(Metric::kHandoffSeconds, std::max(0.0, now.import_seconds - last_.import_seconds));
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
  gauges_->clear(this);
}

}  // namespace tandem
