#include "supervisor/weights_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <vector>

#include "base/file_io.h"
#include "base/file_stamp.h"

namespace tandem {
namespace {

constexpr uint64_t kSpareBytes = 256u << 20;  // stays free for the request log and everybody else

constexpr const char* kSuffix = ".weights";
constexpr const char* kMark = ".whole";
constexpr time_t kUnusedSeconds = 30 * 24 * 3600;

// FNV-1a: tells models of one file name in different folders apart.
uint64_t hash_path(const std::string& path) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : path) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

std::string file_name(const std::string& model_path) {
  std::string stem = model_path.substr(model_path.rfind('/') + 1).substr(0, 150);
  char tail[32];
  std::snprintf(tail, sizeof tail, "-%016llx%s",
                static_cast<unsigned long long>(hash_path(model_path)), kSuffix);
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

std::string stamp_of(int fd) {
  struct stat st;
  return fd < 0 || fstat(fd, &st) != 0 ? "" : file_stamp(st);
}

struct StoredFile {
  std::string path;
  time_t used_s;
};

// Of other models, the longest unused first.
std::vector<StoredFile> others_in(const std::string& folder, const std::string& name) {
  std::vector<StoredFile> files;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  while (dirent* entry = dir ? readdir(dir.get()) : nullptr) {
    const std::string other = entry->d_name, suffix = kSuffix;
    if (other == name || other.size() <= suffix.size() ||
        other.compare(other.size() - suffix.size(), suffix.size(), suffix) != 0)
      continue;
    struct stat st;
    const std::string path = folder + "/" + other;
    if (lstat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode)) files.push_back({path, st.st_atim.tv_sec});
  }
  std::sort(files.begin(), files.end(),
            [](const StoredFile& a, const StoredFile& b) { return a.used_s < b.used_s; });
  return files;
}

void remove_file(const std::string& path) {
  (void)unlink(path.c_str());
  (void)unlink((path + kMark).c_str());
}

void remove_unused(const std::string& folder, const std::string& name) {
  for (const StoredFile& file : others_in(folder, name)) {
    if (file.used_s < time(nullptr) - kUnusedSeconds) remove_file(file.path);
  }
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
                                const OpenModel& model, const std::string& beside) {
  WeightsCache cache;
  cache.folder = folder;
  cache.name = file_name(model_path);
  cache.existing = open_existing(folder + "/" + cache.name);
  cache.stamp = stamp_of(cache.existing.get());
  if (cache.existing.valid()) {  // it is in use: others_in() goes by the time of access, which file systems keep lazily
    const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    (void)futimens(cache.existing.get(), times);
  }
  for (const StoredFile& other : others_in(folder, cache.name)) {
    if (has_room(folder, model)) break;
    if (other.path != folder + "/" + file_name(beside)) remove_file(other.path);
  }
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
  (void)unlink((path + kMark).c_str());
  remove_unused(cache->folder, cache->name);
  cache->existing = open_existing(path);
  cache->stamp = stamp_of(cache->existing.get());
  return ok_status();
}

void remove_weights_cache(const WeightsCache& cache) { remove_file(cache.folder + "/" + cache.name); }

void leave_whole_mark(const WeightsCache& cache) {
  std::ofstream(cache.folder + "/" + cache.name + kMark) << cache.stamp << "\n";  // failing, it only costs a check
}

std::string take_whole_mark(const WeightsCache& cache) {
  const std::string path = cache.folder + "/" + cache.name + kMark;
  std::string stamp = first_line(path).value_or("");
  (void)unlink(path.c_str());
  return stamp;
}

}  // namespace tandem
