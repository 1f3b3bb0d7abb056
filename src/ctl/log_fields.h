// The columns of a request-log row: its names in JSON and SQLite, and where they live in
// RequestRecord.
#pragma once

#include <cstdint>
#include <string>

#include "ipc/request_record.h"

namespace tandem::ctl {

// Calls visit(name, field) for each column that JSON and SQLite spell alike (times differ: see
// log_source).
template <typename Record, typename Visit>
void visit_fields(Record& r, Visit visit) {
  visit("id", r.id);
  visit("client", r.client);
  visit("endpoint", r.endpoint);
  visit("model", r.model);
  visit("priority", r.priority);
  visit("prompt_tokens", r.prompt_tokens);
  visit("completion_tokens", r.completion_tokens);
  visit("cached_tokens", r.cached_tokens);
  visit("queue_ms", r.queue_ms);
  visit("prefill_ms", r.prefill_ms);
  visit("decode_ms", r.decode_ms);
  visit("total_ms", r.total_ms);
  visit("ttft_ms", r.ttft_ms);
  visit("status", r.status);
  visit("finish_reason", r.finish_reason);
  visit("http_status", r.http_status);
  visit("degradation", r.degradation);
  visit("weights", r.weights);
  visit("seed", r.seed);
  visit("worker_generation", r.worker_generation);
  visit("n_dispatches", r.n_dispatches);
  visit("error", r.error);
  visit("prompt_text", r.prompt_text);
  visit("completion_text", r.completion_text);
}

}  // namespace tandem::ctl
