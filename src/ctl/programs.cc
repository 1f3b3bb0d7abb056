#include "ctl/programs.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <vector>

namespace tandem::ctl {

namespace {

std::string own_folder() {
  char path[PATH_MAX];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  if (n <= 0) return ".";
  const std::string exe(path, static_cast<size_t>(n));
  return exe.substr(0, exe.rfind('/'));
}

Result<std::string> find_program(const std::string& name, const std::vector<std::string>& folders) {
  std::string tried;
  for (const std::string& folder : folders) {
    const std::string path = folder + "/" + name;
    if (access(path.c_str(), X_OK) == 0) return path;
    tried += (tried.empty() ? "" : ", ") + path;
  }
  return not_found(name + " not found; looked for " + tried +
                   "; install the package or build all programs");
}

}  // namespace

Result<std::string> find_tandemd() {
  const std::string here = own_folder();
  std::vector<std::string> folders = {here, here + "/../supervisor", "/usr/sbin"};
  if (const char* path = std::getenv("PATH")) {
    const std::string all = path;
    for (size_t at = 0; at <= all.size();) {
      const size_t end = std::min(all.find(':', at), all.size());
      if (end > at) folders.push_back(all.substr(at, end - at));
      at = end + 1;
    }
  }
  return find_program("tandemd", folders);
}

Result<std::string> find_worker() {
  const std::string here = own_folder();
  return find_program("tandem-worker", {here, here + "/../worker", "/usr/libexec/tandem"});
}

Result<std::string> find_cuda_worker() {
  return find_program("tandem-worker-cuda", {own_folder(), "/usr/libexec/tandem"});
}

}  // namespace tandem::ctl
