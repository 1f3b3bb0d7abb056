// A worker as the dispatcher sees it: its state, and messages to it. WorkerKeeper is the real one; tests put
// others in its place. Confined to the supervisor's loop thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ipc/messages.h"

namespace tandem {

enum class WorkerState { kNoModel, kLoading, kReady, kBackoff, kRefused, kStopped };
const char* worker_state_name(WorkerState state);

class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual ipc::Role role() const = 0;
  virtual WorkerState state() const = 0;
  virtual const std::string& cause() const = 0;                   // why not ready, one sentence
  virtual const std::optional<ipc::ModelInfo>& model() const = 0;  // of the newest ready life
  virtual uint64_t generation() const = 0;                        // number of its life
  virtual bool send(const ipc::ToWorker& message) = 0;  // false: not ready, or just dying
  virtual void note_dispatch() = 0;  // work goes to an idle worker: its patience starts now
  virtual void note_progress() = 0;  // the worker moved a request ahead
  virtual void protocol_fault(const std::string& what) = 0;  // nonsense: ended, by its own fault
};

inline bool is_ready(const WorkerLink& link) { return link.state() == WorkerState::kReady; }
// Whether a request can run: a worker of both roles is ready, or one of each.
bool can_serve(std::span<WorkerLink* const> links);
// The worker whose state says best how all are: a ready one that generates text, if they can serve; else the one
// that keeps them from it most. At least one link.
const WorkerLink& spokesman(std::span<WorkerLink* const> links);

}  // namespace tandem
