#include "supervisor/host_sensors.h"

#include <dirent.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file_io.h"

namespace tandem {
namespace {

using State = SensorReading::State;

std::optional<double> number(const std::string& text) {
  double value = 0;
  size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return std::nullopt;
  auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// Names in a folder with this prefix, sorted; a folder that is not there has none.
std::vector<std::string> entries(const std::string& folder, const std::string& prefix) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {
    std::string name = entry->d_name;
    if (name.compare(0, prefix.size(), prefix) == 0) names.push_back(name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

bool is_plausible_c(double c) { return c > -60 && c < 200; }

// The lowest trip point at which the kernel acts: passive, hot or critical. Active ones only start a fan.
std::optional<double> trip_point_c(const std::string& zone) {
  std::optional<double> lowest;
  for (const std::string& name : entries(zone, "trip_point_")) {
    size_t tail = name.rfind("_type");
    if (tail == std::string::npos || tail + 5 != name.size()) continue;
    auto type = first_line(zone + "/" + name);
    auto temp = first_line(zone + "/" + name.substr(0, tail) + "_temp");
    auto milli = temp ? number(*temp) : std::nullopt;
    if (!type || !milli || *type == "active" || *milli <= 0 || !is_plausible_c(*milli / 1000)) continue;
    if (!lowest || *milli / 1000 < *lowest) lowest = *milli / 1000;
  }
  return lowest;
}

// The zone nearest to its trip point speaks for all; zones without one count only if no zone has one.
void read_heat(const std::string& root, HostReadings* out) {
  const std::string folder = root + "/sys/class/thermal";
  double least_room = 1e9;
  std::string broken;
  for (const std::string& name : entries(folder, "thermal_zone")) {
    const std::string zone = folder + "/" + name;
    std::string label = name;
    if (auto type = first_line(zone + "/type")) label += " " + *type;
    auto text = first_line(zone + "/temp");
    auto milli = text ? number(*text) : std::nullopt;
    if (!milli || !is_plausible_c(*milli / 1000)) {
      broken = label + (text ? " reads \"" + text->substr(0, 20) + "\"" : " does not answer");
      continue;
    }
    double c = *milli / 1000;
    auto trip = trip_point_c(zone);
    double room = trip ? *trip - c : 1e6 - c;
    if (room >= least_room) continue;
    least_room = room;
    out->temperature_c = {State::kOk, c, label};
    out->trip_c = trip ? SensorReading{State::kOk, *trip, label} : SensorReading{State::kAbsent, 0, label};
  }
  if (out->temperature_c.state == State::kAbsent && !broken.empty())
    out->temperature_c = {State::kBroken, 0, broken};
}

SensorReading mean_of(const std::string& root, const std::string& file, double factor) {
  const std::string folder = root + "/sys/devices/system/cpu";
  double sum = 0;
  int n = 0;
  bool is_broken = false;
  for (const std::string& cpu : entries(folder, "cpu")) {
    if (cpu.size() < 4 || cpu[3] < '0' || cpu[3] > '9') continue;
    auto text = first_line(folder + "/" + cpu + "/" + file);
    if (!text) continue;
    auto value = number(*text);
    if (!value || *value < 0) {
      is_broken = true;
      continue;
    }
    sum += *value * factor;
    ++n;
  }
  if (n > 0) return {State::kOk, sum / n, std::to_string(n) + " cores"};
  return {is_broken ? State::kBroken : State::kAbsent, 0, file};
}

SensorReading sum_of(const std::string& root, const std::string& file) {
  SensorReading mean = mean_of(root, file, 1);
  if (mean.state == State::kOk) mean.value *= number(mean.note).value_or(1);
  return mean;
}

void read_memory(const std::string& root, HostReadings* out) {
  if (auto line = first_line(root + "/proc/pressure/memory")) {
    size_t at = line->find("avg10=");
    auto percent = at == std::string::npos ? std::nullopt : number(line->substr(at + 6));
    bool is_good = percent && *percent >= 0 && *percent <= 100;
    out->memory_pressure = is_good ? SensorReading{State::kOk, *percent / 100, "PSI some avg10"}
                                   : SensorReading{State::kBroken, 0, "PSI reads \"" + line->substr(0, 40) + "\""};
  } else {
    out->memory_pressure = {State::kAbsent, 0, "PSI is off in this kernel"};
  }
  std::ifstream info(root + "/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    SensorReading* target = line.rfind("MemAvailable:", 0) == 0 ? &out->memory_available_bytes
                            : line.rfind("MemTotal:", 0) == 0   ? &out->memory_total_bytes
                                                                : nullptr;
    if (target == nullptr) continue;
    auto kib = number(line.substr(line.find(':') + 1));
    *target = kib ? SensorReading{State::kOk, *kib * 1024, "meminfo"} : SensorReading{State::kBroken, 0, line};
  }
  std::ifstream vmstat(root + "/proc/vmstat");
  for (std::string line; std::getline(vmstat, line);) {
    if (line.rfind("pgmajfault ", 0) != 0) continue;
    auto n = number(line.substr(11));
    out->major_faults = n ? SensorReading{State::kOk, *n, "vmstat"} : SensorReading{State::kBroken, 0, line};
  }
}

void read_disk(const std::string& folder, HostReadings* out) {
  struct statvfs disk {};
  if (statvfs(folder.c_str(), &disk) != 0) return;
  auto unit = static_cast<double>(disk.f_frsize);
  out->disk_free_bytes = {State::kOk, static_cast<double>(disk.f_bavail) * unit, folder};
  out->disk_total_bytes = {State::kOk, static_cast<double>(disk.f_blocks) * unit, folder};
}

}  // namespace

int64_t resident_bytes(int64_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/statm");
  int64_t size = 0, resident = 0;
  return in >> size >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

const char* sensor_state_name(State state) {
  constexpr const char* kNames[] = {"absent", "ok", "late", "broken"};
  return kNames[static_cast<int>(state)];
}

HostReadings read_host(const std::string& root, const std::string& folder) {
  HostReadings out;
  read_heat(root, &out);
  out.clock_hz = mean_of(root, "cpufreq/scaling_cur_freq", 1000);
  out.max_clock_hz = mean_of(root, "cpufreq/cpuinfo_max_freq", 1000);
  out.throttle_events = sum_of(root, "thermal_throttle/core_throttle_count");
  read_memory(root, &out);
  read_disk(folder, &out);
  out.read_us = monotonic_us();
  return out;
}

HostSensors::HostSensors(std::string root, std::string folder) : shared_(std::make_shared<Shared>()) {
  thread_ = std::thread(thread_main, shared_, std::move(root), std::move(folder));
}

HostSensors::~HostSensors() {
  std::unique_lock lock(shared_->mutex);
  shared_->is_stopping = true;
  shared_->wake.notify_all();
  bool is_over = shared_->wake.wait_for(lock, std::chrono::seconds(1), [&] { return shared_->is_over; });
  lock.unlock();
  is_over ? thread_.join() : thread_.detach();
}

void HostSensors::thread_main(std::shared_ptr<Shared> shared, std::string root, std::string folder) {
  std::unique_lock lock(shared->mutex);
  while (!shared->is_stopping) {
    lock.unlock();
    HostReadings readings = read_host(root, folder);
    lock.lock();
    shared->readings = std::move(readings);
    shared->wake.wait_for(lock, std::chrono::microseconds(kPeriodUs), [&] { return shared->is_stopping; });
  }
  shared->is_over = true;
  shared->wake.notify_all();
}

HostReadings HostSensors::latest(int64_t now_us) const {
  HostReadings copy;
  {
    std::lock_guard lock(shared_->mutex);
    copy = shared_->readings;
  }
  if (copy.read_us != 0 && now_us - copy.read_us <= kLateUs) return copy;
  for (SensorReading* r : {&copy.temperature_c, &copy.trip_c, &copy.clock_hz, &copy.max_clock_hz, &copy.throttle_events,
                           &copy.memory_pressure, &copy.memory_available_bytes, &copy.memory_total_bytes,
                           &copy.major_faults, &copy.disk_free_bytes, &copy.disk_total_bytes})
    if (r->state == State::kOk) r->state = State::kLate;
  return copy;
}

}  // namespace tandem
