// What the status page rests on: history, recent requests and faults, sensors of a planted box; and
// what an administrator can ask for.
#include <sys/stat.h>

#include "box.h"
#include "base/file_hash.h"
#include "supervisor/history.h"
#include "supervisor/host_sensors.h"
#include "supervisor/recent.h"

using namespace tandem;
using Action = api::AdminCommand::Action;

namespace {

constexpr int64_t kS = 1'000'000;

// A tree like /sys and /proc in a folder of its own.
struct Tree {
  testing::TempFolder folder;
  const std::string& root = folder.path;
  void put(const std::string& path, const std::string& line) { folder.put(path, line + "\n"); }
};

api::AdminCommand command(Action action, int64_t pid = 0) {
  api::AdminCommand c;
  c.action = action, c.pid = pid;
  return c;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("history: a point each 5 s, gaps where nothing was measured, 15 minutes at most") {
  History h;
  int64_t now = 100 * kS;
  h.turn(now);
  for (double v : {0.3, 0.1, 0.2}) h.note_first_token(v);
  for (int i = 0; i < 50; ++i) h.note_token();
  h.turn(now + 4 * kS);
  CHECK(h.points().empty());
  h.turn(now += 5 * kS);
  REQUIRE(h.points().size() == 1);
  CHECK(h.points()[0].ttft_s == 0.2);
  CHECK(h.points()[0].inter_token_s == -1);
  CHECK(h.points()[0].tokens_per_s == 10);
  h.turn(now += 5 * kS);
  CHECK(h.points()[1].tokens_per_s == 0);
  CHECK(h.points()[1].ttft_s == -1);
  for (int i = 0; i < 1000; ++i) {
    for (int k = 0; k < 10; ++k) h.note_gap(0.01);
    h.turn(now += 5 * kS);
  }
  CHECK(h.points().size() == History::kPoints);
  for (int i = 0; i < 100'000; ++i) h.note_gap(i < 50'000 ? 1 : 2);
  h.turn(now += 5 * kS);
  CHECK(h.points().back().inter_token_s == 2);  // what came last counts when there is too much
  h.turn(now += 3600 * kS);                     // the box slept
  CHECK(h.points().size() == 1);
}

TEST_CASE("recent: bounded, newest first, equal faults in a row are counted") {
  Recent recent;
  for (int i = 0; i < 100; ++i) {
    ipc::RequestRecord r;
    r.id = "req_" + std::to_string(i), r.error = "queue_full: all places are taken", r.client = "alice",
    r.prompt_text = "secret";
    recent.add_request(r);
    recent.add_fault("same", "done", i);
  }
  CHECK(recent.requests().size() == Recent::kRequests);
  CHECK(recent.requests()[0].id == "req_99");
  CHECK(recent.requests()[0].error_code == "queue_full");
  REQUIRE(recent.faults().size() == 1);
  CHECK(recent.faults()[0].n == 100);
  CHECK(recent.faults()[0].at_us == 99);
  for (int i = 0; i < 100; ++i) recent.add_fault("f" + std::to_string(i), "done", i);
  CHECK(recent.faults().size() == Recent::kFaults);
  CHECK(recent.faults()[0].what == "f99");
}

TEST_CASE("sensors: present, absent and broken ones are told apart") {
  using State = SensorReading::State;
  Tree t;
  HostReadings none = read_host(t.root, t.root + "/nonexistent");
  for (const SensorReading* r : {&none.temperature_c, &none.trip_c, &none.clock_hz, &none.throttle_events,
                                 &none.memory_pressure, &none.memory_available_bytes, &none.major_faults,
                                 &none.disk_free_bytes})
    CHECK(r->state == State::kAbsent);
  t.put("/sys/class/thermal/thermal_zone0/type", "acpitz");
  t.put("/sys/class/thermal/thermal_zone0/temp", "45000");
  t.put("/sys/class/thermal/thermal_zone0/trip_point_0_type", "active");
  t.put("/sys/class/thermal/thermal_zone0/trip_point_0_temp", "50000");
  t.put("/sys/class/thermal/thermal_zone0/trip_point_1_type", "critical");
  t.put("/sys/class/thermal/thermal_zone0/trip_point_1_temp", "105000");
  t.put("/sys/class/thermal/thermal_zone1/type", "cpu-thermal");
  t.put("/sys/class/thermal/thermal_zone1/temp", "70000");
  t.put("/sys/class/thermal/thermal_zone1/trip_point_0_type", "passive");
  t.put("/sys/class/thermal/thermal_zone1/trip_point_0_temp", "85000");
  t.put("/sys/class/thermal/thermal_zone2/temp", "-274000");  // a driver's "not now"
  for (int cpu = 0; cpu < 2; ++cpu) {
    std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    t.put(folder + "/cpufreq/scaling_cur_freq", cpu == 0 ? "1000000" : "2000000");
    t.put(folder + "/cpufreq/cpuinfo_max_freq", "2400000");
    t.put(folder + "/thermal_throttle/core_throttle_count", "7");
  }
  t.put("/sys/devices/system/cpu/cpufreq/policy0", "x");
  t.put("/proc/pressure/memory", "some avg10=12.50 avg60=0.00 avg300=0.00 total=0\nfull avg10=1.00");
  t.put("/proc/meminfo", "MemTotal:       2048 kB\nMemAvailable:   1024 kB");
  t.put("/proc/vmstat", "pgfault 5\npgmajfault 42");
  HostReadings r = read_host(t.root, t.root);
  CHECK(r.disk_free_bytes.state == State::kOk);
  CHECK(r.disk_total_bytes.value >= r.disk_free_bytes.value);
  CHECK(r.temperature_c.value == 70);  // 15 below its trip point, the other zone 60
  CHECK(r.temperature_c.note == "thermal_zone1 cpu-thermal");
  CHECK(r.trip_c.value == 85);
  CHECK(r.clock_hz.value == 1.5e9);
  CHECK(r.max_clock_hz.value == 2.4e9);
  CHECK(r.throttle_events.value == 14);
  CHECK(r.memory_pressure.value == Approx(0.125));
  CHECK(r.memory_available_bytes.value == 1024 * 1024);
  CHECK(r.major_faults.value == 42);
  std::filesystem::remove_all(t.root + "/sys/class/thermal/thermal_zone0");
  t.put("/sys/class/thermal/thermal_zone1/temp", "rubbish");
  t.put("/proc/pressure/memory", "some avg10=oops");
  for (int cpu = 0; cpu < 2; ++cpu)
    t.put("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_cur_freq", "<unknown>");
  r = read_host(t.root, t.root);
  CHECK(r.temperature_c.state == State::kBroken);
  CHECK(r.memory_pressure.state == State::kBroken);
  CHECK(r.clock_hz.state == State::kBroken);
}

TEST_CASE("sensors: a file that hangs makes readings late, not the reader") {
  using State = SensorReading::State;
  Tree t;
  t.put("/proc/meminfo", "MemTotal: 2048 kB\nMemAvailable: 1024 kB");
  HostSensors sensors(t.root, t.root);
  REQUIRE(wait_until([&] { return sensors.latest(monotonic_us()).read_us != 0; }));
  std::string vmstat = t.root + "/proc/vmstat";
  REQUIRE(mkfifo(vmstat.c_str(), 0600) == 0);  // opening it blocks: nobody writes
  usleep(1'500'000);
  int64_t before = monotonic_us();
  HostReadings later = sensors.latest(monotonic_us() + 6 * kS);
  CHECK(monotonic_us() - before < kS / 10);
  CHECK(later.memory_available_bytes.state == State::kLate);
  CHECK(later.memory_available_bytes.value == 1024 * 1024);
  CHECK(later.temperature_c.state == State::kAbsent);
  std::thread release([&] {
    usleep(100'000);
    std::ofstream(vmstat) << "pgmajfault 1\n";
  });
  release.join();
}

TEST_CASE("status.json: recent requests, faults and history come through; no client, no text") {
  Box box("step_us=1000", [](Config* c) { c->log_text = true; });
  auto r = ask({1, 2, 3}, 20);
  r.client = "alice";
  r.log_prompt_text = "secret words";
  REQUIRE(box.run(r).error_code == "");
  std::string status = box.supervisor->status_json();
  CHECK(has(status, "\"status\":\"length\""));
  CHECK(has(status, "\"faults\":[]"));
  CHECK(!has(status, "alice"));
  CHECK(!has(status, "secret"));
  CHECK(wait_until([&] { return has(box.supervisor->status_json(), "\"sha256\":\"" + sha256_of_text("step_us=1000\n")); }));
  REQUIRE(box.strike(SIGSEGV));
  CHECK(wait_until([&] { return has(box.supervisor->status_json(), "\"what\":\"worker ended: crash: signal 11"); }));
  CHECK(wait_until([&] { return box.is_ready(); }));
  CHECK(wait_until([&] { return !has(box.supervisor->status_json(), "\"tokens_per_second\":[]"); }));
}

TEST_CASE("admin: drain refuses new work and finishes the rest; undrain takes it back") {
  Box box("step_us=3000");
  std::thread running([&] {
    Reply r = box.run(ask({1}, 200));
    if (r.error_code != "" || r.completion_tokens != 200) std::abort();
  });
  REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 1; }));
  auto done = box.supervisor->admin(command(Action::kDrain, 0));
  REQUIRE(done.ok());
  CHECK(wait_until([&] { return box.supervisor->readiness().state == api::Readiness::State::kDraining; }));
  CHECK(has(box.supervisor->readiness().cause, "administrator"));
  Reply refused = box.run(ask({1}, 1));
  CHECK(refused.error_code == "draining");
  CHECK(refused.http_status == 503);
  CHECK(refused.retry_after_s > 0);
  running.join();  // what ran was finished, whole
  CHECK(box.supervisor->readiness().state == api::Readiness::State::kDraining);
  REQUIRE(box.supervisor->admin(command(Action::kUndrain, 0)).ok());
  CHECK(wait_until([&] { return box.is_ready(); }));
  CHECK(box.run(ask({1}, 1)).error_code == "");
}

TEST_CASE("admin: a worker restarted in the middle of a request changes no byte of it") {
  Box box("step_us=2000");
  Reply whole = box.run(ask({5, 6}, 150, 9));
  int64_t pid = box.pid();
  Reply resumed;
  std::thread client([&] { resumed = box.run(ask({5, 6}, 150, 9)); });
  REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 1; }));
  usleep(60'000);
  auto other = box.supervisor->admin(command(Action::kRestartWorker, 1));
  CHECK(!other.ok());
  CHECK(other.error().code == "admin_failed");
  REQUIRE(box.supervisor->admin(command(Action::kRestartWorker, pid)).ok());
  client.join();
  CHECK(resumed.same_as(whole));
  CHECK(box.pid() != pid);
  CHECK(box.metric(Metric::kWorkerRestarts, {"both", "admin"}) == 1);
  CHECK(has(box.supervisor->status_json(), "restarted by an administrator"));
  // Many in a row: none counts as a crash, none backs off.
  for (int i = 0; i < 5; ++i) {
    int64_t before = box.pid();
    REQUIRE(box.supervisor->admin(command(Action::kRestartWorker, before)).ok());
    REQUIRE(wait_until([&] { return box.pid() > 0 && box.pid() != before; }, 3000));
  }
  CHECK(wait_until([&] { return box.is_ready(); }, 3000));
  CHECK(box.run(ask({5, 6}, 150, 9)).same_as(whole));
}

TEST_CASE("admin: nothing is taken while shutting down; reload without a way says so") {
  Box box("step_us=3000");
  CHECK(box.supervisor->admin(command(Action::kReload, 0)).error().code == "admin_failed");
  std::thread running([&] { box.run(ask({1}, 200)); });
  REQUIRE(wait_until([&] { return box.metric(Metric::kRequestsRunning) == 1; }));
  box.supervisor->drain();
  CHECK(wait_until([&] { return !box.supervisor->admin(command(Action::kUndrain, 0)).ok(); }));
  running.join();
}
