#include "supervisor/accounting.h"

#include <sstream>
#include <string>
#include <utility>

#include "base/log.h"

namespace tandem {

void Accounting::account_ended(ipc::RequestRecord record) {
  auto seconds = [](double ms) { return ms / 1000; };
  metrics_->observe(Metric::kLatency, seconds(record.queue_ms), {"queue"});
  metrics_->observe(Metric::kLatency, seconds(record.total_ms), {"total"});
  if (record.ttft_ms > 0) {
    metrics_->observe(Metric::kLatency, seconds(record.prefill_ms), {"prefill"});
    metrics_->observe(Metric::kLatency, seconds(record.decode_ms), {"decode"});
  }
  account(std::move(record));
}

void Accounting::account_refused(ipc::RequestRecord record) {
  record.prompt_tokens = record.completion_tokens = record.cached_tokens = 0;
  account(std::move(record));
}

void Accounting::account(ipc::RequestRecord record) {
  metrics_->add(Metric::kRequests, 1, {record.status});
  metrics_->add(Metric::kPromptTokens, static_cast<double>(record.prompt_tokens));
  metrics_->add(Metric::kGenerationTokens, static_cast<double>(record.completion_tokens));
  metrics_->add(Metric::kPrefixCacheHitTokens, static_cast<double>(record.cached_tokens));
  std::istringstream rungs(record.degradation);
  for (std::string rung; std::getline(rungs, rung, ',');) metrics_->add(Metric::kRequestsDegraded, 1, {rung});
  log_info("request finished", {{"request_id", record.id},
                                {"status", record.status},
                                {"http_status", record.http_status},
                                {"endpoint", record.endpoint},
                                {"priority", record.priority},
                                {"prompt_tokens", record.prompt_tokens},
                                {"completion_tokens", record.completion_tokens},
                                {"queue_ms", record.queue_ms},
                                {"ttft_ms", record.ttft_ms},
                                {"total_ms", record.total_ms},
                                {"dispatches", record.n_dispatches},
                                {"error", record.error}});
  recent_->add_request(record);
  log_->append(std::move(record));
}

void Accounting::collect_log_counters() {
  RequestLogCounters now = log_->counters();
  metrics_->add(Metric::kLogDropped, static_cast<double>(now.rows_dropped - last_.rows_dropped));
  metrics_->add(Metric::kLogBytes, static_cast<double>(now.bytes_written - last_.bytes_written));
  last_ = now;
}

}  // namespace tandem
