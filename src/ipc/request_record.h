// One row of the request log, as filled by the supervisor (and by the API for refused requests).
#pragma once

#include <cstdint>
#include <string>

namespace tandem::ipc {

struct RequestRecord {
  std::string id;              // "req_…", as in the header X-Request-Id and the reply's id
  int64_t received_us = 0;     // UTC
  int64_t finished_us = 0;     // UTC
  std::string client;          // key name, "" without keys
  std::string endpoint;        // "chat", "completions"
  std::string model;
  std::string priority;        // "high", "normal", "low"
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0, total_ms = 0, ttft_ms = 0;
  std::string status;          // stop length deadline aborted failed cancelled rejected
  std::string finish_reason;   // of choice 0, as sent
  int http_status = 0;
  std::string degradation;     // rungs that touched it
  std::string weights;         // weight set
  uint64_t seed = 0;
  int64_t worker_generation = 0;
  int64_t n_dispatches = 0;    // 1 + resumes
  std::string error;
  std::string prompt_text, completion_text;  // only with log.text
};

struct RecordQuery {
  int64_t since_us = 0, until_us = 0;  // 0: open
  std::string status, client, id;      // empty: any
  int limit = 100;                     // 1..10000, newest first
};

}  // namespace tandem::ipc
