#include "supervisor/weights_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace tandem {
namespace {

constexpr uint64_t kSpareBytes = 256u << 20;  // stays free for the request log and everybody else

// FNV-1a: tells models of one file name in different folders apart.
uint64_t hash_path(const std::string& path) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : path) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

std::string file_name(const std::string& model_path) {
  std::string stem = model_path.substr(model_path.rfind('/') + 1).substr(0, 150);
  char tail[32];
  std::snprintf(tail, sizeof tail, "-%016llx.weights",
                static_cast<unsigned long long>(hash_path(model_path)));
  return stem + tail;
}

// Nobody else's file: what is in it is computed with.
UniqueFd open_existing(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat st;
  if (!fd.valid() || fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid())
    return UniqueFd();
  return fd;
}

// Packed weights are about as large as the model.
bool has_room(const std::string& folder, const OpenModel& model) {
  uint64_t needed = kSpareBytes;
  for (const UniqueFd& part : model.fds) {
    struct stat st;
    if (fstat(part.get(), &st) == 0) needed += static_cast<uint64_t>(st.st_size) * 5 / 4;
  }
  struct statvfs vfs;
  return statvfs(folder.c_str(), &vfs) != 0 || vfs.f_bavail * vfs.f_frsize >= needed;
}

}  // namespace

WeightsCache open_weights_cache(const std::string& folder, const std::string& model_path,
                                const OpenModel& model) {
  WeightsCache cache;
  cache.folder = folder;
  cache.name = file_name(model_path);
  cache.existing = open_existing(folder + "/" + cache.name);
  if (!has_room(folder, model)) {
    cache.trouble = "too little space is free in " + folder;
    return cache;
  }
  cache.fresh.reset(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!cache.fresh.valid())
    cache.trouble = errno_status(errno, "cannot create a file in " + folder).message();
  return cache;
}

Status publish_weights_cache(WeightsCache* cache) {
  const UniqueFd file = std::move(cache->fresh);
  if (!file.valid()) return {StatusCode::kFailedPrecondition, "no file of packed weights is open"};
  const std::string path = cache->folder + "/" + cache->name, staged = path + ".new";
  const std::string from = "/proc/self/fd/" + std::to_string(file.get());
  (void)unlink(staged.c_str());  // of a process that ended between the two steps
  if (linkat(AT_FDCWD, from.c_str(), AT_FDCWD, staged.c_str(), AT_SYMLINK_FOLLOW) != 0)
    return errno_status(errno, "cannot name " + staged);
  if (rename(staged.c_str(), path.c_str()) != 0) {
    const int err = errno;
    (void)unlink(staged.c_str());
    return errno_status(err, "cannot put " + path + " in place");
  }
  return ok_status();
}

}  // namespace tandem
