#include "supervisor/recent.h"

#include <utility>

namespace tandem {

void Recent::add_request(const ipc::RequestRecord& r) {
  RecentRequest shown;
  shown.id = r.id, shown.endpoint = r.endpoint, shown.priority = r.priority;
  shown.status = r.status, shown.degradation = r.degradation;
  shown.error_code = r.error.substr(0, r.error.find(':'));
  shown.http_status = r.http_status, shown.finished_us = r.finished_us;
  shown.prompt_tokens = r.prompt_tokens, shown.completion_tokens = r.completion_tokens;
  shown.cached_tokens = r.cached_tokens, shown.n_dispatches = r.n_dispatches;
  shown.queue_ms = r.queue_ms, shown.ttft_ms = r.ttft_ms, shown.total_ms = r.total_ms;
  std::lock_guard lock(mutex_);
  requests_.push_front(std::move(shown));
  if (requests_.size() > kRequests) requests_.pop_back();
}

void Recent::add_fault(std::string what, std::string action, int64_t utc_us) {
  std::lock_guard lock(mutex_);
  if (!faults_.empty() && faults_.front().what == what && faults_.front().action == action) {
    faults_.front().at_us = utc_us;
    ++faults_.front().n;
    return;
  }
  faults_.push_front({utc_us, std::move(what), std::move(action), 1});
  if (faults_.size() > kFaults) faults_.pop_back();
}

std::vector<RecentRequest> Recent::requests() const {
  std::lock_guard lock(mutex_);
  return {requests_.begin(), requests_.end()};
}

std::vector<Fault> Recent::faults() const {
  std::lock_guard lock(mutex_);
  return {faults_.begin(), faults_.end()};
}

}  // namespace tandem
