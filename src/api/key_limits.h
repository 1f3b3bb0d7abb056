// What one key may use: requests at the same time and requests a minute. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "api/api_error.h"

namespace tandem::api {

struct KeyLimit {
  int max_running = 0;     // 0: no limit
  int max_per_minute = 0;  // 0: no limit; as many may come at once, then they refill evenly
};

class KeyLimits {
 public:
  // One request of `client`: a place that is given back when the pointer goes, or `key_limit_exceeded` (429 with
  // Retry-After). A refused request costs nothing.
  ApiResult<std::shared_ptr<void>> take(const std::string& client, const KeyLimit& limit, int64_t now_us);

 private:
  struct Use {
    int n_running = 0;
    double allowance = 0;  // requests that may come now
    int64_t refilled_us = -1;
  };
  struct State {
    std::mutex mutex;  // guards uses
    std::map<std::string, Use> uses;  // by name of the key: as many as there were keys
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // places may outlive us
};

}  // namespace tandem::api
