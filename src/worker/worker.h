// A serving worker: its threads and the queues between them.
//   I/O thread (the caller of run): channel, text streams, heartbeats; tells nobody to wait.
//   engine thread: loads the model, then steps; owns backend, scheduler and pages.
//   pool thread, briefly: page tables of the KV pool (its memory too, where it is the worker's own).
//   text thread: templates and tokenizing of new prompts, so that a long one delays no stream's text.
#pragma once

#include <vector>

#include "ipc/messages.h"

namespace tandem {

struct WorkerOptions {
  int channel_fd = -1;
  std::vector<int> model_fds;  // the model's parts in order, open for reading
  ipc::Role role = ipc::Role::kBoth;
  int device = -1;                 // run the model on that device; -1: on the processor
  int pool_fd = -1;                // memfd for the KV pool; -1: it dies with this process
  std::vector<int> lent_pool_fds;  // of a decode worker: the pools of the prefill workers, by their number
  // Packed weights (cpu/pack_cache.h), -1: none: those of an earlier start, and an empty file to store them in.
  int cache_fd = -1, new_cache_fd = -1;
  // The same three of weights.lean, where that is a file.
  std::vector<int> lean_fds;
  int lean_cache_fd = -1, new_lean_cache_fd = -1;
};

// Returns the exit code: 0 told to stop or the supervisor is gone, 70 our bug, 75 device lost, 78 configuration
// or model.
int run_worker(const WorkerOptions& options);

}  // namespace tandem
