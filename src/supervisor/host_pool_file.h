// The memfd in which a worker keeps its KV pages: created and sized here, held as long as tandemd lives, mapped
// only by workers. So what a worker has computed outlives it. Confined to the supervisor's loop thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tandem {

class HostPoolFile {
 public:
  // An empty one; its descriptor is valid for all of tandemd's life.
  static Result<HostPoolFile> create(const std::string& name);
  int fd() const { return fd_.get(); }
  int64_t bytes() const { return bytes_; }
  // At least so large from now on. It never shrinks, because somebody may have mapped it; where less is needed,
  // the memory of the rest goes back to the kernel. kExhausted names sizes and limits.
  Status resize(int64_t bytes);

 private:
  UniqueFd fd_;
  int64_t bytes_ = 0;
};

}  // namespace tandem
