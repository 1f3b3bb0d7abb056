// What the REST API asks of the rest of tandemd. Implemented by supervisor/; tests/api has a fake. All calls
// are thread-safe: they come from connection threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/api_error.h"
#include "ipc/messages.h"
#include "ipc/request_record.h"

namespace tandem::api {

struct GenerateRequest {
  std::string id;                    // "req_…": log, header, reply id is derived from it
  std::string endpoint;              // "chat", "completions"
  std::string client;                // key name
  std::vector<int32_t> prompt;       // from prepare()
  ipc::Sampling sampling;
  std::vector<std::string> stop;
  int n_choices = 1;
  std::optional<uint32_t> max_tokens;  // absent: up to context or pool
  bool prompt_logprobs = false;
  ipc::Priority priority = ipc::Priority::kNormal;
  int64_t received_us = 0;           // monotonic
  int64_t deadline_us = 0;           // monotonic
  bool is_stream = false;
  std::string log_prompt_text;       // only with log.text
};  // sampling.seed is always set: the API draws one for a request that names none

struct StreamTiming {
  double queue_ms = 0, prefill_ms = 0, decode_ms = 0, ttft_ms = 0, total_ms = 0;
};
struct StreamEvent {
  enum class Kind {
    kText,          // choice, text, logprobs released with it
    kChoiceEnd,     // choice, finish (kStop, kLength or kDeadline with tokens: else kError), text and logprobs
                    // released with the end, if any
    kPromptLogprobs,  // logprobs: the next entries in prompt order, from position 0 on; before any kText
    kEnd,           // all choices ended: totals are final
    kError,         // ends the stream: failed, aborted, or rejected after queueing (deadline before the first
                    // token: "deadline_exceeded"; shed or displaced: "overloaded")
    kIdle,          // nothing within the wait
  } kind = Kind::kIdle;
  uint32_t choice = 0;
  std::string text;
  std::vector<ipc::LogprobEntry> logprobs;
  ipc::FinishReason finish = ipc::FinishReason::kNone;
  std::string reason;              // `tandem.reason`, e.g. "deadline", "kv_pool"
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;  // kEnd
  StreamTiming timing;             // kChoiceEnd, kEnd
  std::vector<std::string> degraded;  // rungs that touched this request (kChoiceEnd, kEnd)
  std::optional<ApiError> error;   // kError
};

// The reading end of one accepted request. Events wait in a bounded buffer; a reader that stays away longer
// than server.slow_reader_timeout_ms is cut. Destroying it before kEnd/kError cancels the request. Confined
// to one thread.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;
  virtual StreamEvent next(std::chrono::milliseconds wait) = 0;
};

struct Readiness {
  enum class State { kReady, kDegraded, kWarming, kDead, kDraining } state = State::kWarming;
  std::string cause;       // one sentence
  std::string remedy;      // may be empty
};

struct PrepareOutcome {
  std::vector<int32_t> ids;
  std::string prompt_text;   // want_prompt_text: as rendered; for kIds the ids' text
};

// What bounds a call that waits for a worker. Look at both at least every 50 ms while waiting.
struct CallLimits {
  int64_t deadline_us = 0;               // monotonic
  std::function<bool()> is_client_gone;  // called on the caller's thread only; empty: nobody can leave
};

// What an administrator asks for (/admin/*).
struct AdminCommand {
  enum class Action {
    kDrain,          // refuse new work, finish the rest, keep running
    kUndrain,
    kReload,         // as SIGHUP
    kRestartWorker,  // its requests go on in the next one
    kDegrade,        // pin a rung of the ladder, or clear its pin
  } action = Action::kDrain;
  int64_t pid = 0;  // kRestartWorker: which; 0: all
  std::string rung;         // kDegrade
  std::optional<bool> pin;  // kDegrade: on, off; absent: the load decides
};

class InferenceService {
 public:
  virtual ~InferenceService() = default;
  virtual Readiness readiness() = 0;
  // Model of the newest ready worker; empty before the first one is ready.
  virtual std::optional<ipc::ModelInfo> model() = 0;
  virtual std::string model_name() = 0;         // the served id, known from configuration at once
  virtual int64_t model_created() = 0;          // seconds since 1970, the file's time

  // Renders and tokenizes (`request.id` is set by the service); waits for a worker until the deadline, then
  // "no_worker" (503). Errors are ready to send; "client_gone" when the client left meanwhile.
  virtual ApiResult<PrepareOutcome> prepare(ipc::Prepare request, const CallLimits& limits) = 0;
  virtual ApiResult<std::string> detokenize(std::vector<int32_t> ids, const CallLimits& limits) = 0;
  // Checks limits (context, pool, max_prompt_tokens) and the queue's bound; else accepts. From here on the
  // request ends once and gets exactly one row in the log.
  virtual ApiResult<std::unique_ptr<ResponseStream>> submit(GenerateRequest request) = 0;
  // A row for an inference request that never got a ResponseStream. `record.status` is the outcome:
  // "rejected", or "deadline" / "cancelled" for one that ended while it waited in prepare().
  virtual void record_rejected(ipc::RequestRecord record) = 0;

  virtual std::string metrics_text() = 0;       // Prometheus text; never blocks on a worker
  virtual std::string status_json() = 0;        // /status.json
  virtual std::string config_text() = 0;        // TOML as in force; it holds paths of key files, never keys
  // One sentence on what was done; "admin_failed" with the reason.
  virtual ApiResult<std::string> admin(const AdminCommand& command) = 0;
  virtual ApiResult<std::vector<ipc::RequestRecord>> query_log(const ipc::RecordQuery& query) = 0;
};

}  // namespace tandem::api
