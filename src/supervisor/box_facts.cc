#include "supervisor/box_facts.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace tandem {
namespace {

// What follows `key` in a file of `key separator value` lines, without quotes; "" if nothing does.
std::string value_of(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    size_t begin = line.find_first_not_of("=: \t\"", key.size());
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of("\" \t") + 1 - begin);
  }
  return "";
}

int64_t file_bytes(const std::string& path) {
  struct stat st {};
  return stat(path.c_str(), &st) == 0 ? st.st_size : -1;
}

}  // namespace

BoxFacts read_box_facts(const StatusView& view) {
  BoxFacts box;
  utsname names{};
  if (uname(&names) == 0) box.kernel = std::string(names.sysname) + " " + names.release, box.machine = names.machine;
  box.distribution = value_of("/etc/os-release", "PRETTY_NAME");
  box.cpu_model = value_of("/proc/cpuinfo", "model name");
  box.n_cores = static_cast<int>(std::thread::hardware_concurrency());
  box.supervisor_rss_bytes = resident_bytes(getpid());
  for (const WorkerView& w : view.workers) box.worker_rss_bytes.push_back(w.pid > 0 ? resident_bytes(w.pid) : 0);
  if (int64_t bytes = file_bytes(view.log_path); bytes >= 0)
    box.log_file_bytes = bytes + std::max<int64_t>(0, file_bytes(view.log_path + "-wal"));
  return box;
}

}  // namespace tandem
