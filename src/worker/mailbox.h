// What the engine and text threads have for the I/O thread, and the bell that wakes it. Thread-safe.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "engine/request.h"
#include "ipc/messages.h"

namespace tandem {

class Mailbox {
 public:
  struct Letters {
    std::vector<EngineEvents> engine_events;
    std::vector<ipc::FromWorker> messages;  // to be sent as they are
    bool is_loaded = false;                 // the engine runs from now on
    std::optional<ipc::Fatal> fatal;        // send, then exit
  };

  Mailbox();
  int bell_fd() const { return bell_.get(); }  // readable when something may be there
  Letters take();                              // I/O thread; quiets the bell

  // Engine thread. Waits while the I/O thread is kMaxEngineEvents steps behind: the engine must not run ahead
  // of what can be told.
  void post_events(EngineEvents events);
  void post_message(ipc::FromWorker message);
  void post_loaded();
  void post_fatal(ipc::Fatal fatal);
  void close();  // nobody takes any more: posts no longer wait

 private:
  static constexpr size_t kMaxEngineEvents = 1024;
  void ring();

  std::mutex mutex_;  // guards letters_, is_closed_
  std::condition_variable taken_;
  Letters letters_;
  bool is_closed_ = false;
  UniqueFd bell_;
};

}  // namespace tandem
