// What the box says of itself: heat, clocks, memory pressure, disk. Read each second by a thread of its own, because a
// file of sysfs or a disk may hang in a driver; readers get the latest copy with its age. A sensor that is not there, does
// not answer or answers nonsense is said to be so, never zero.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace tandem {

struct SensorReading {
  enum class State { kAbsent, kOk, kLate, kBroken } state = State::kAbsent;
  double value = 0;   // only with kOk and kLate (then the last one known)
  std::string note;   // which sensor; for kBroken what it said
};
const char* sensor_state_name(SensorReading::State state);  // "absent", "ok", "late", "broken"

struct HostReadings {
  SensorReading temperature_c;      // the zone nearest to its trip point
  SensorReading trip_c;             // that zone's first trip point at which the kernel throttles or stops
  SensorReading clock_hz;           // mean of the cores
  SensorReading max_clock_hz;
  SensorReading throttle_events;    // counter of all cores
  SensorReading memory_pressure;    // PSI: share of the last 10 s in which some task waited for memory, 0..1
  SensorReading memory_available_bytes, memory_total_bytes;
  SensorReading major_faults;       // counter since boot
  SensorReading disk_free_bytes, disk_total_bytes;  // of the folder given
  int64_t read_us = 0;              // monotonic; 0: nothing read yet
};

// One pass over the files below `root` ("" = the real ones; tests plant a tree), and the disk of `folder`.
HostReadings read_host(const std::string& root, const std::string& folder);
int64_t resident_bytes(int64_t pid);  // 0: no such process

class HostSensors {
 public:
  static constexpr int64_t kPeriodUs = 1'000'000;
  static constexpr int64_t kLateUs = 5'000'000;  // older readings are late
  HostSensors(std::string root, std::string folder);
  ~HostSensors();  // gives a pass that hangs in a driver up: its thread ends by itself, later
  // The latest pass; what is older than kLateUs is kLate. Thread-safe.
  HostReadings latest(int64_t now_us) const;

 private:
  struct Shared {  // outlives a hanging thread
    std::mutex mutex;  // guards the rest
    std::condition_variable wake;
    HostReadings readings;
    bool is_stopping = false, is_over = false;
  };
  static void thread_main(std::shared_ptr<Shared> shared, std::string root, std::string folder);
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace tandem
