#include "worker/host_facts.h"

#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "base/file_stamp.h"
#include "base/process_memory.h"

namespace tandem {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 60;  // cgroup v1 writes "none" as a number near 2^63

// Of the control group this process is in: version 2 first, then version 1, each as mounted by default.
int64_t cgroup_limit() {
  std::ifstream groups("/proc/self/cgroup");
  int64_t least = kNoLimit;
  for (std::string line; std::getline(groups, line);) {
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    bool is_v2 = controllers.empty();
    if (!is_v2 && controllers.find("memory") == std::string::npos) continue;
    std::string root = is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (;;) {  // a parent's limit binds too
      std::ifstream file(root + path + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      std::string text;
      if (std::getline(file, text)) {
        if (int64_t limit = parse_memory_limit(text.c_str()); limit > 0) least = std::min(least, limit);
      }
      if (path.empty() || path == "/") break;
      path.erase(path.rfind('/'));
    }
  }
  return least;
}

}  // namespace

int64_t parse_memory_limit(const char* text) {
  char* end = nullptr;
  long long value = std::strtoll(text, &end, 10);
  return end == text || value <= 0 || value >= kNoLimit ? 0 : value;
}

HostFacts read_host_facts() {
  HostFacts facts;
  struct stat st{};
  if (stat("/proc/self/exe", &st) == 0) facts.program_stamp = file_stamp(st);
  facts.cpu = detect_cpu();
  struct sysinfo info{};
  if (sysinfo(&info) == 0) facts.memory_bytes = static_cast<int64_t>(info.totalram) * info.mem_unit;
  facts.memory_bytes = std::min(facts.memory_bytes, cgroup_limit());
  tzset();
  (void)read_process_memory().ok();  // opens its file
  return facts;
}

}  // namespace tandem
