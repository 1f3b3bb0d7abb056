#include "supervisor/sd_notify.h"

#include <systemd/sd-daemon.h>

#include "base/clock.h"

namespace tandem {

constexpr int64_t kEndMs = 10'000;  // from the end of a drain to that of the process: workers, request log

SdNotify::SdNotify() {
  uint64_t usec = 0;
  if (sd_watchdog_enabled(0, &usec) > 0) watchdog_us_ = static_cast<int64_t>(usec);
}

void SdNotify::ready() { sd_notify(0, "READY=1"); }

namespace {

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

void SdNotify::status(const std::string& text) {
  if (text == status_) return;
  status_ = text;
  sd_notify(0, ("STATUS=" + one_line(text)).c_str());
}

void SdNotify::reloading() {
  sd_notify(0, ("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(monotonic_us())).c_str());
}

void SdNotify::stopping(int64_t drain_ms) {
  int64_t usec = (drain_ms + kEndMs) * 1000;
  sd_notify(0, ("STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=" + std::to_string(usec)).c_str());
}

void SdNotify::failed(const std::string& reason) {
  sd_notify(0, ("STATUS=cannot start: " + one_line(reason) ).c_str());
}

void SdNotify::alive(int64_t now_us) {
  if (watchdog_us_ == 0 || now_us - last_alive_us_ < watchdog_us_ / 2) return;
  last_alive_us_ = now_us;
  sd_notify(0, "WATCHDOG=1");
}

UniqueFd inherited_socket() {
  return sd_listen_fds(1) >= 1 ? UniqueFd(SD_LISTEN_FDS_START) : UniqueFd();
}

}  // namespace tandem
