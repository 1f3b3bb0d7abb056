// The one place where an ended request is counted: its row in the log, its metrics and its line in
// the process log come from one record, so that they can't disagree. Thread-safe.
#pragma once

#include "ipc/request_record.h"
#include "metrics/metrics.h"
#include "requestlog/request_log.h"
#include "supervisor/recent.h"

namespace tandem {

class Accounting {
 public:
  Accounting(Metrics* metrics, RequestLog* log, Recent* recent)
      : metrics_(metrics), log_(log), recent_(recent) {}
  // A request that was accepted and has ended.
  void account_ended(ipc::RequestRecord record);
  // One that never was: no latencies, and no tokens were processed for it.
  void account_refused(ipc::RequestRecord record);
  // Loop thread: takes over what the request log counts by itself.
  void collect_log_counters();

 private:
  void account(ipc::RequestRecord record);
  Metrics* metrics_;
  RequestLog* log_;
  Recent* recent_;
  RequestLogCounters last_;  // loop thread
};

}  // namespace tandem
