// What happened lately, as the status page and the support bundle show it: the last ended requests (never their
// text, never who asked) and the last faults with what was done about each. Bounded. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "ipc/request_record.h"

namespace tandem {

struct RecentRequest {
  std::string id, endpoint, priority, status, degradation;
  std::string error_code;  // "queue_full"; the sentence stays in the request log
  int http_status = 0;
  int64_t finished_us = 0;  // UTC
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, n_dispatches = 0;
  double queue_ms = 0, ttft_ms = 0, total_ms = 0;
};

struct Fault {
  int64_t at_us = 0;  // UTC, of the latest of a run of equal ones
  std::string what, action;
  int64_t n = 1;  // equal ones in a row
};

class Recent {
 public:
  static constexpr size_t kRequests = 12, kFaults = 20;
  void add_request(const ipc::RequestRecord& record);
  void add_fault(std::string what, std::string action, int64_t utc_us);
  std::vector<RecentRequest> requests() const;  // newest first
  std::vector<Fault> faults() const;            // newest first

 private:
  mutable std::mutex mutex_;  // guards both
  std::deque<RecentRequest> requests_;
  std::deque<Fault> faults_;
};

}  // namespace tandem
