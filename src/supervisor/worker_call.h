// A question to a worker that is answered at once (rendering, tokenizing, detokenizing), with a
// connection thread waiting for the answer. A call that was at a worker when it died is asked
// again.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "api/api_error.h"
#include "ipc/messages.h"

namespace tandem {

struct WorkerCall {
  uint64_t id = 0;  // set by the dispatcher; unique among calls and requests
  std::variant<ipc::Prepare, ipc::Detokenize> question;
  int lane = -1;  // the worker that has it, -1: none; loop thread

  using Answer = std::variant<ipc::PrepareReply, ipc::DetokenizeReply, api::ApiError>;
  // Loop thread; the first answer counts.
  void answer(Answer a) {
    std::lock_guard lock(mutex);
    if (!result) result = std::move(a);
    answered.notify_all();
  }
  // Connection thread.
  std::optional<Answer> wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex);
    answered.wait_for(lock, time, [&] { return result.has_value(); });
    return result;
  }

 private:
  std::mutex mutex;  // guards result
  std::condition_variable answered;
  std::optional<Answer> result;
};

}  // namespace tandem
