// The I/O thread's view of running requests: Submit messages become engine requests, engine events become
// messages with text. Holds each choice's TextStream, finds stop strings, forgets a request with its last
// choice. No threads, no channel: pure translation. Confined to the I/O thread.
#pragma once

#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "ipc/messages.h"
#include "tokenizer/tokenizer.h"
#include "worker/text_stream.h"

namespace tandem {

EngineLoan engine_loan(uint64_t id, const ipc::Loan& loan);

class RequestStreams {
 public:
  // A choice that ended by its text: the engine is to stop it without a word.
  struct Ended {
    uint64_t id;
    uint32_t choice;
  };
  struct Output {
    std::vector<ipc::FromWorker> messages;  // in order
    std::vector<Ended> ended;
  };

  // `role`, `generation`: of this worker. A prefill worker's requests end with their loan, a decode worker's begin
  // with one.
  explicit RequestStreams(const Tokenizer* tokenizer, ipc::Role role = ipc::Role::kBoth, uint64_t generation = 0)
      : tokenizer_(tokenizer), role_(role), generation_(generation) {}

  // Replays what is known of the choices. The engine request is absent when nothing is left to do; the
  // events that tell so are in `output`. Malformed requests end as kFailed.
  std::optional<EngineRequest> begin(ipc::Submit submit, Output* output);
  void translate(EngineEvents events, Output* output);
  // Notes why, so that the engine's kCancelled is told with that reason. False: unknown, it has ended.
  bool cancel(uint64_t id, ipc::FinishReason reason);
  std::vector<uint32_t> unfinished_choices(uint64_t id) const;
  size_t n_requests() const { return requests_.size(); }

 private:
  struct Request {
    std::map<uint32_t, TextStream> choices;  // unfinished ones
    ipc::FinishReason cancel_reason = ipc::FinishReason::kCancelled;
  };
  std::string check(const ipc::Submit& submit) const;
  void add_token(const EngineToken& token, ipc::TokenEvents* out, std::vector<Ended>* ended);
  ipc::LogprobEntry entry(const TokenLogprob& chosen, const std::vector<TokenLogprob>& top) const;

  const Tokenizer* tokenizer_;
  const ipc::Role role_;
  const uint64_t generation_;
  std::unordered_map<uint64_t, Request> requests_;
};

}  // namespace tandem
