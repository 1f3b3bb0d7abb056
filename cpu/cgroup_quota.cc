#include "cpu/cgroup_quota.h"

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <vector>

#include "base/file_io.h"

namespace tandem {

namespace {

double quota_in(const std::string& folder, bool is_v2) {
  if (is_v2) return quota_of(first_line(folder + "/cpu.max").value_or(""));
  return quota_of(first_line(folder + "/cpu.cfs_quota_us").value_or("") + " " + first_line(folder + "/cpu.cfs_period_us").value_or(""));
}

}  // namespace

double quota_of(const std::string& quota) {
  std::istringstream words(quota);
  int64_t quota_us = 0, period_us = 0;
  if (!(words >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) return 0;
  return static_cast<double>(quota_us) / static_cast<double>(period_us);
}

double cgroup_quota(const std::string& membership, const std::string& root) {
  double tightest = 0;
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // "0::/path" (v2) or "4:cpu,cpuacct:/path" (v1)
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v2 = controllers.empty();
    if (!is_v2 && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    // Version 2 alone, version 2 beside version 1, version 1 under the controller's name or under all of them.
    std::vector<std::string> mounts = {root + "/cpu", root + "/" + controllers};
    if (is_v2) mounts = {root, root + "/unified"};
    for (const std::string& mount : mounts) {
      // A group of another namespace does not show here; its ancestors' limits, at the mount itself, bind too.
      for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
        const double cores = quota_in(mount + (path == "/" ? "" : path), is_v2);
        if (cores > 0 && (tightest == 0 || cores < tightest)) tightest = cores;
        if (path.find('/') == std::string::npos) break;
      }
    }
  }
  return tightest;
}

int threads_of_quota(double quota) {
  return quota <= 0 ? 0 : static_cast<int>(std::clamp(quota, 1.0, 65536.0));
}

}  // namespace tandem
