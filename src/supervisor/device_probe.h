// Asks `tandem-worker-cuda --probe-device N` whether the device is there, without waiting for the answer. Confined to the
// supervisor's loop thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tandem {

class DeviceProbe {
 public:
  struct Answer {
    bool is_there = false;
    std::string text;  // what is there, or what is missing
  };
  ~DeviceProbe();
  Status start(const std::string& program, int device, int64_t now_us);
  bool is_running() const { return pid_ > 0; }
  // Once it has ended, or has taken too long.
  std::optional<Answer> poll(int64_t now_us);

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
  int64_t start_us_ = 0;
};

}  // namespace tandem
