// One accepted request: what is known of it until it ends. This is the truth that outlives workers:
// from it a request is dispatched again after a worker's death, so that nothing is repeated and
// nothing is missing. Plain data and the rules that turn a worker's events into events for the
// client. Confined to the supervisor's loop thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/service.h"
#include "base/status.h"
#include "ipc/messages.h"
#include "ipc/request_record.h"
#include "supervisor/response_buffer.h"

namespace tandem {

struct Choice {
  std::vector<int32_t> generated;               // tokens drawn so far, all workers together
  ipc::WeightBorders weight_borders;            // of the positions its tokens were drawn from, and all before
  uint64_t bytes_released = 0;                  // bytes of text handed to the client
  std::deque<ipc::LogprobEntry> held_logprobs;  // of tokens from n_shown on: not yet released
  uint32_t n_shown = 0;                         // tokens whose log-probabilities were released
  ipc::FinishReason finish = ipc::FinishReason::kNone;
  int64_t last_token_us = 0;
};

struct Request {
  uint64_t id = 0;       // supervisor's own number
  uint64_t wire_id = 0;  // id of the current dispatch; 0: waits. Events of older ones are ignored
  api::GenerateRequest in;
  uint32_t max_tokens = 0;     // per choice, resolved against context
  int32_t context_tokens = 0;  // in force at admission
  std::vector<Choice> choices;
  uint32_t n_prompt_logprobs = 0;  // entries handed to the client
  uint32_t n_prompt_done = 0;      // furthest prompt position ever reached
  ipc::WeightBorders prompt_borders;  // of the prompt's positions
  uint32_t n_cached = 0;           // prefix-cache hit of the first dispatch
  int n_dispatches = 0;
  int64_t waited_us = 0;           // in the queue, up to the latest dispatch
  bool is_recalled = false;        // waits because a higher class took its place at the worker
  // Whether the decode worker's device computes the prompt (prompt_placement.h): as at the first dispatch ever after.
  bool is_device_prompt = false;
  // Where it is, as indices of workers; -1: nowhere. One of both roles holds it as `decoder`. A prefill worker
  // holds it until the decoder has copied its pages; before is_handed_over the decoder's place is only kept.
  int prefiller = -1, decoder = -1;
  bool is_handed_over = false;
  int n_bad_loans = 0;  // handovers in a row that the decoder could not use
  uint64_t worker_generation = 0;  // of the latest dispatch
  int64_t received_utc_us = 0, dispatched_us = 0, prompt_done_us = 0,
          first_token_us = 0;  // 0: not yet
  int64_t last_event_us = 0;
  std::vector<std::string> degraded;  // rungs that touched it, as the reply says
  bool is_capped = false;             // max_tokens was lowered by the rung `tokens`
  bool is_held_back = false;          // waited while the rung `batch` kept a place free
  bool is_reply_begun = false;  // the client may have seen something
  std::shared_ptr<ResponseBuffer> buffer;
  std::string completion_text;  // of choice 0; only with log.text

  size_t n_unfinished() const;
  bool is_finished() const { return n_unfinished() == 0; }
  int64_t completion_tokens() const;
};

// What one event from the worker means for the request.
struct TokenEffect {
  std::vector<api::StreamEvent> events;  // for the client, in order
  bool is_new_token = false;
  std::optional<double> gap_s;  // since the choice's previous token
  ipc::FinishReason abnormal =
      ipc::FinishReason::kNone;   // kFailed, kAborted, kCancelled: ends all choices
  bool is_late_deadline = false;  // deadline before any token: 504
};
// kInvalidArgument: the event contradicts what is known (a token out of order, an unknown choice):
// the worker is wrong, nothing was changed.
Result<TokenEffect> apply_token_event(Request* request, ipc::TokenEvent event, int64_t now_us);
// Notes which sets computed the prompt. kInvalidArgument as above.
Status apply_prompt_progress(Request* request, ipc::PromptProgress progress);
// New entries of the prompt's log-probabilities, those known already left out.
Result<std::vector<ipc::LogprobEntry>> apply_prompt_logprobs(Request* request,
                                                             ipc::PromptLogprobs message);

// The message that starts or resumes it.
ipc::Submit make_submit(const Request& request);
api::StreamTiming timing_of(const Request& request, int64_t now_us);
// Row of the request log. `outcome` is the log status; `error` null for normal ends.
ipc::RequestRecord make_record(const Request& request, const std::string& outcome,
                               const api::ApiError* error, const std::string& model,
                               int64_t now_us);
// Adds a rung's name to those that touched the request, once.
void mark_degraded(Request* request, const char* rung);
const char* priority_name(ipc::Priority priority);
// "stop", "length", "deadline": how the choices ended, taken together.
std::string normal_outcome(const Request& request);

}  // namespace tandem
