// Tells systemd what is going on (Type=notify): readiness, one status line, the watchdog's sign of
// life. Without systemd (no NOTIFY_SOCKET) every call does nothing. Confined to the main thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace tandem {

class SdNotify {
 public:
  SdNotify();
  void ready();                          // READY=1: the port is open
  void status(const std::string& text);  // STATUS=, sent on change only
  void reloading();                      // RELOADING=1, with the monotonic time systemd asks for
  void stopping(int64_t drain_ms);       // STOPPING=1, and time for the drain beyond TimeoutStopSec
  void failed(const std::string& reason);  // STATUS= for `systemctl status` of a start that failed
  void alive(int64_t now_us);            // WATCHDOG=1, at half of WatchdogSec

 private:
  int64_t watchdog_us_ = 0;  // 0: systemd doesn't watch
  int64_t last_alive_us_ = 0;
  std::string status_;
};

// A listening socket handed over by systemd (socket activation), or none. Call once.
UniqueFd inherited_socket();

}  // namespace tandem
