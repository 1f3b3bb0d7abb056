// The waiting queue of tandemd, its gate to the worker, and the worker's scheduler with its page
// pool, all of them the real ones, over a backend that computes nothing and a clock that moves by
// what a latency model says. Watches what must hold at any load, and reports each breach.
//
// The fake backend keeps a hash per page of all tokens up to its last one and draws the next token
// from it; so each token depends on the whole chain of pages behind it, and a page with two owners,
// lost or not copied shows as a token that its request must not get.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "admission/admission_queue.h"
#include "engine/scheduler.h"
#include "latency_model.h"
#include "trace.h"

namespace tandem {

// Faults planted on purpose, each of which must be reported.
enum class Plant : uint8_t { kNone, kLeak, kStarvation, kDoubleEnd, kTwoOwners, kQueueBound };

struct SimOptions {
  SchedulerOptions scheduler;          // windows and pages of one group, full attention
  AdmissionLimits limits;
  LatencyModel latency;
  int64_t starved_us = 3'600'000'000;  // a request that takes so long has starved
  uint64_t seed = 1;                   // of the noise
  Plant plant = Plant::kNone;
};

struct SimOutcome {                    // of one request
  enum class End : uint8_t { kNone, kDone, kDeadline, kCancelled, kRefused, kDisplaced };
  End end = End::kNone;
  int64_t first_token_us = -1, end_us = -1;  // from arrival
  int64_t worst_gap_us = 0;                  // between two of its tokens
  int retry_after_s = 0;                     // with kRefused, kDisplaced
  int n_cached = 0;
};

struct SimReport {
  std::vector<SimOutcome> outcomes;    // as the trace
  std::map<SimOutcome::End, int64_t> n_ends;
  int64_t n_tokens = 0, n_steps = 0;
  double seconds = 0;                  // of the simulated clock, to the last end
  uint64_t preemptions = 0, swaps = 0, recalls = 0;
  double wasted_share = 0;             // KV: of the tokens' room held by running sequences, on average
  std::vector<std::string> faults;     // breaches; empty if all held

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(n_tokens) / seconds : 0; }
};

SimReport simulate(const std::vector<SimRequest>& trace, const SimOptions& options);

// The p-th quantile (0 to 1) of what `value` gives, of those requests for which it is >= 0.
template <typename F>
double quantile(const SimReport& report, double p, F value) {
  std::vector<double> values;
  for (size_t i = 0; i < report.outcomes.size(); ++i) {
    if (double v = value(i, report.outcomes[i]); v >= 0) values.push_back(v);
  }
  if (values.empty()) return -1;
  auto at = values.begin() + static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

}  // namespace tandem
