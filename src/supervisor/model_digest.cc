#include "supervisor/model_digest.h"

#include <fcntl.h>
#include <sched.h>

#include "base/file_hash.h"
#include "base/unique_fd.h"

namespace tandem {
namespace {

constexpr const char* kMemory = "/model_digests";

std::string digest_of(const std::vector<std::string>& paths, const std::atomic<bool>& stop) {
  std::vector<UniqueFd> files;
  std::vector<int> fds;
  for (const std::string& path : paths) {
    files.emplace_back(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!files.back().valid()) return "";
    fds.push_back(files.back().get());
  }
  auto digest = sha256_of_files(fds, &stop);
  return digest.ok() ? *digest : "";
}

}  // namespace

void ModelDigest::want(const std::string& folder, const std::string& stamp,
                       const std::vector<std::string>& paths) {
  if (stamp == stamp_) return;
  stop();
  stamp_ = stamp;
  hex_ = find_sha256(folder + kMemory, stamp);
  if (!hex_.empty()) {
    is_done_ = true;
    return;
  }
  thread_ = std::thread([this, folder, stamp, paths] {
    const sched_param idle{};
    (void)sched_setscheduler(0, SCHED_IDLE, &idle);  // this thread: after everybody who serves
    hex_ = digest_of(paths, stop_);
    if (hex_.empty()) return;
    remember_sha256(folder + kMemory, stamp, hex_);
    is_done_ = true;
  });
}

void ModelDigest::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  stop_ = is_done_ = false;
  stamp_.clear();
}

}  // namespace tandem
