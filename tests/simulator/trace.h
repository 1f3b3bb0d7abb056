// Arrival traces: what requests come when. Recorded ones are read from a text file or from what
// GET /v1/requests answered; synthetic ones are drawn from a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

struct SimRequest {
  int64_t arrival_us = 0;
  int n_prompt = 1, n_output = 1;
  int n_shared = 0;        // first tokens of the prompt that all requests of its key have in common
  int n_choices = 1;
  int priority = 1;        // 0 high, 1 normal, 2 low
  int key = 0;             // client
  int64_t timeout_us = 0;  // from arrival; 0: none
  int64_t cancel_us = 0;   // from arrival; 0: the client stays
};

struct SyntheticTrace {
  int64_t n_requests = 1000;
  double per_second = 10;            // Poisson arrivals; 0: all at once
  int short_prompt = 64, long_prompt = 64;
  int short_output = 8, long_output = 1024;
  double long_share = 0.05;
  double high_share = 0, low_share = 0;
  int n_keys = 1;
  int n_shared = 0;
  double cancel_share = 0;           // leave after up to a second
  double timeout_share = 0;          // deadline after up to two seconds; some of them past at arrival
  uint64_t seed = 1;
};

std::vector<SimRequest> make_trace(const SyntheticTrace& what);
// Lines of `arrival_ms prompt output [priority 0|1|2 [key]]`, or the JSON of /v1/requests.
Result<std::vector<SimRequest>> read_trace(const std::string& path);

}  // namespace tandem
