// When a worker leaves its device, and when it comes back.
#include <catch2/catch.hpp>

#include "supervisor/device_policy.h"

namespace tandem {
namespace {

constexpr int64_t kSecond = 1'000'000;

Config device_config() {
  Config c;
  c.workers_prefill = c.workers_decode = 1;
  c.gpu_device = "0";
  c.gpu_fault_limit = 3;
  c.gpu_fault_window_ms = 60'000;
  c.gpu_cooldown_ms = 10'000;
  return c;
}

}  // namespace

TEST_CASE("only decode workers want the device, and workers of both roles where prompts are placed there") {
  Config c = device_config();
  CHECK(wanted_device(c, ipc::Role::kDecode) == 0);
  CHECK(wanted_device(c, ipc::Role::kPrefill) == -1);
  CHECK(wanted_device(c, ipc::Role::kBoth) == -1);
  c.prefill_placement = "gpu";
  CHECK(wanted_device(c, ipc::Role::kBoth) == 0);
  c.gpu_device = "none";
  CHECK(wanted_device(c, ipc::Role::kDecode) == -1);
}

TEST_CASE("a device that cannot be opened is given up at once, one that fails only after so many faults in the window") {
  DevicePolicy absent(device_config(), ipc::Role::kDecode);
  CHECK(absent.on_end("device", "no NVIDIA driver", DevicePolicy::kNeverReady, 0));
  CHECK(absent.device() == -1);
  CHECK(absent.cause() == "no NVIDIA driver");

  DevicePolicy p(device_config(), ipc::Role::kDecode);
  CHECK(!p.on_end("killed", "signal 9", kSecond, 0));
  CHECK(!p.on_end("device", "lost", kSecond, 1 * kSecond));
  CHECK(!p.on_end("watchdog", "hangs", kSecond, 2 * kSecond));
  CHECK(!p.on_end("crash", "signal 11", kSecond, 62 * kSecond));  // the first is out of the window
  CHECK(p.device() == 0);
  CHECK(p.on_end("device", "ECC", kSecond, 62 * kSecond));
  CHECK(p.device() == -1);
  CHECK(p.cause().find("ECC") != std::string::npos);
  CHECK(!p.on_end("crash", "on the processor now", kSecond, 63 * kSecond));
}

TEST_CASE("after the cool-down it is probed, comes back, and is trusted less each time") {
  DevicePolicy p(device_config(), ipc::Role::kDecode);
  CHECK(!p.is_probe_due(100 * kSecond));
  REQUIRE(p.on_end("device", "busy", DevicePolicy::kNeverReady, 0));
  CHECK(!p.is_probe_due(9 * kSecond));
  CHECK(p.is_probe_due(10 * kSecond));
  p.on_probe(false, "still busy", 10 * kSecond);
  CHECK(p.cause() == "still busy");
  CHECK(!p.is_probe_due(19 * kSecond));
  p.on_probe(true, "there", 20 * kSecond);
  CHECK(p.device() == 0);
  CHECK(!p.is_given_up());
  REQUIRE(p.on_end("device", "gone again", DevicePolicy::kNeverReady, 21 * kSecond));
  CHECK(!p.is_probe_due(40 * kSecond));
  CHECK(p.is_probe_due(41 * kSecond));
}

TEST_CASE("a life that served for a whole window ends the row of give-ups, a shorter one does not") {
  const auto cooldown_after = [](int64_t served_us) {
    DevicePolicy p(device_config(), ipc::Role::kDecode);
    int64_t now = 0;
    for (int i = 0; i < 4; ++i) {  // 10, 20, 40, 80 s
      REQUIRE(p.on_end("device", "gone", DevicePolicy::kNeverReady, now));
      now += 1000 * kSecond;
      p.on_probe(true, "there", now);
    }
    now += served_us;
    CHECK(!p.on_end("admin", "restarted", served_us, now));  // whatever ended it
    REQUIRE(p.on_end("device", "gone", DevicePolicy::kNeverReady, now));
    int64_t s = 0;
    while (!p.is_probe_due(now + s * kSecond)) ++s;
    return s;
  };
  CHECK(cooldown_after(59 * kSecond) == 160);
  CHECK(cooldown_after(60 * kSecond) == 10);
}

}  // namespace tandem
