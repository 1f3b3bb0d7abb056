// The step loop of a worker: schedule -> forward -> sample -> commit. Owned by the engine thread; other
// threads reach it through submit() and cancel() (bounded queue, flags) and get EngineEvents back through
// the sink, called on the engine thread. Sees token ids only: text belongs to the worker's I/O thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/page_ledger.h"
#include "engine/page_source.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "model/backend.h"

namespace tandem {

struct EngineOptions {
  int max_batch_size = 32;
  int prefill_chunk_tokens = 256;
  int64_t target_gap_us = 0;          // between two tokens of a stream, where prompts are computed beside it; 0: any
  Batching batching = Batching::kContinuous;
  int64_t form_us = 50'000;           // static batching: wait for a full batch
  bool adapts_batch_limit = true;     // to the share of pages in use
  int page_size = 16;
  int context_tokens = 0;             // prompt + generated, at most
  // Per KV group; the backend has reserved both together, and attends to all of them in place.
  std::vector<int> n_pages, n_swap_pages;
  int max_cached_pages = INT32_MAX;   // per KV group, that the prefix cache alone may hold
  bool has_prefix_cache = true;       // reuse the full pages of earlier sequences
  PageSource* source = nullptr;       // for requests with a loan; outlives the engine
  PageLedger* ledger = nullptr;       // of a pool that outlives the worker; outlives the engine
  uint64_t lean_id = 0;               // of the file that the lean set is from: what another one's computed is not found again
  int64_t ageing_us = 5'000'000;      // waiting time that lifts a sequence by one priority class
  // Called on the engine thread when the backend fails; the engine then does nothing more. The worker ends
  // the process: kInternal is our bug, kUnavailable a lost device.
  std::function<void(const Status&)> on_backend_error;
};

struct EngineCounters {               // read by other threads
  std::atomic<uint64_t> turns{0}, steps{0}, prompt_tokens{0}, generated_tokens{0}, preemptions{0}, swaps{0},
      pages_readopted{0}, computed_tokens{0};
  std::atomic<uint32_t> n_running{0}, n_waiting{0}, last_batch{0}, batch_limit{0};
  std::atomic<int64_t> pages_used{0}, pages_free{0}, pages_shared{0}, pages_swapped{0}, pages_lent{0};
  std::atomic<double> prefill_seconds{0}, decode_seconds{0}, sampling_seconds{0};
};

class Engine {
 public:
  // The backend's pages are reserved already. The sink is called once a turn that has something to tell.
  Engine(Backend* backend, EngineOptions options, const Clock* clock,
         std::function<void(EngineEvents)> sink);
  ~Engine();
  // Thread-safe. kExhausted when the inbox is full (the supervisor bounds what it dispatches).
  Status submit(EngineRequest request);
  // Thread-safe; takes effect before the next step, which frees the pages. choice < 0: all. Ends decided by
  // the I/O thread (stop string found) use end_silently: no further event for that choice from then on.
  void cancel(uint64_t id, int choice, bool end_silently, SequenceEnd reason);
  // Thread-safe. Pages lent ahead of a request with a loan, `tokens` those of its blocks; needs `source`.
  void arrive(EngineLoan loan, std::vector<int32_t> tokens);
  // Thread-safe. A loan of ours is over.
  void release(uint64_t id);
  // Engine thread, before requests come: the cached full pages of this prefix stay for the engine's life, and
  // max_tokens_per_sequence() is what is left beside them. Returns how many tokens they hold.
  int pin(std::span<const int32_t> tokens);
  // Thread-safe. New positions are computed with this set from the next step on, their K/V kept. kUnimplemented:
  // there is no lean set.
  Status set_weights(WeightSet set);
  // One turn: take the inbox, one step if there is work. Returns false when there was nothing to do.
  bool turn();
  void run(const std::atomic<bool>& stop);   // turns until stop; sleeps on the inbox when idle
  void wake();                               // thread-safe: run() looks at `stop` at once
  const EngineCounters& counters() const;    // thread-safe
  int max_tokens_per_sequence() const;       // prompt + generated: context or pool, a constant

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
