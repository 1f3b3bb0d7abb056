#include "ctl/model_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/file_hash.h"
#include "base/file_io.h"
#include "base/unique_fd.h"
#include "ctl/progress.h"

namespace tandem::ctl {

namespace {

constexpr const char* kSuffix = ".gguf";
constexpr const char* kDefaultLink = "default";
constexpr int64_t kReserveBytes = 64 << 20;  // for the request log, which shares the disk
constexpr size_t kCopyBytes = 1 << 20;

bool is_model_name(const std::string& name) { return check_model_name(name).ok(); }

Result<std::string> hash_of(int fd) { return sha256_of_files({fd}); }

// Whether the bytes of `to` are those at the beginning of `from`. Both are read from 0.
bool is_beginning(int from, int to, int64_t bytes) {
  std::string a(kCopyBytes, 0), b(kCopyBytes, 0);
  for (int64_t at = 0; at < bytes;) {
    size_t want = static_cast<size_t>(std::min<int64_t>(bytes - at, kCopyBytes));
    if (pread(from, a.data(), want, at) != static_cast<ssize_t>(want) || pread(to, b.data(), want, at) != static_cast<ssize_t>(want) ||
        std::memcmp(a.data(), b.data(), want) != 0)
      return false;
    at += static_cast<int64_t>(want);
  }
  return true;
}

}  // namespace

Status check_model_name(const std::string& name) {
  bool ok = name.size() > std::strlen(kSuffix) && name.size() <= 200 && name[0] != '.' &&
            name.compare(name.size() - std::strlen(kSuffix), std::string::npos, kSuffix) == 0;
  for (char c : name)
    ok = ok && ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-');
  return ok ? ok_status()
            : invalid_argument("a model's file name must be letters, digits, '.', '_' and '-' and end in .gguf, got \"" + name +
                               "\"; give one with --name");
}

Status ModelStore::create() const {
  for (size_t slash = folder_.find('/', 1);; slash = folder_.find('/', slash + 1)) {
    std::string part = folder_.substr(0, slash);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) return errno_status(errno, "cannot create folder " + part);
    if (slash == std::string::npos) return ok_status();
  }
}

Result<std::vector<StoredModel>> ModelStore::list() const {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder_.c_str()), closedir);
  if (!dir) return errno_status(errno, "cannot list models in " + folder_);
  char link[256] = "";
  ssize_t n = readlink((folder_ + "/" + kDefaultLink).c_str(), link, sizeof link - 1);
  std::string chosen(link, n > 0 ? static_cast<size_t>(n) : 0);
  std::vector<StoredModel> models;
  while (dirent* entry = readdir(dir.get())) {
    StoredModel model;
    model.name = entry->d_name;
    struct stat st;
    if (!is_model_name(model.name) || stat((folder_ + "/" + model.name).c_str(), &st) != 0) continue;
    model.bytes = st.st_size;
    model.is_default = model.name == chosen;
    models.push_back(std::move(model));
  }
  std::sort(models.begin(), models.end(), [](const StoredModel& a, const StoredModel& b) { return a.name < b.name; });
  if (models.size() == 1 && chosen.empty()) models[0].is_default = true;  // the only one is served
  return models;
}

Status ModelStore::set_default(const std::string& name) const {
  CHECK_OK(check_model_name(name));
  if (access((folder_ + "/" + name).c_str(), F_OK) != 0)
    return errno_status(errno, "no model " + name + " in " + folder_ + " (tandem model list)");
  std::string link = folder_ + "/" + kDefaultLink, fresh = link + ".new";
  unlink(fresh.c_str());
  if (symlink(name.c_str(), fresh.c_str()) != 0) return errno_status(errno, "cannot create link " + fresh);
  return rename_durably(fresh, link);
}

Status ModelStore::check_space(int64_t bytes) const {
  struct statvfs disk;
  if (statvfs(folder_.c_str(), &disk) != 0) return errno_status(errno, "cannot ask for free space in " + folder_);
  int64_t free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  if (free >= bytes + kReserveBytes) return ok_status();
  return exhausted(folder_ + " has " + std::to_string(free >> 20) + " MiB free; " + std::to_string((bytes + kReserveBytes) >> 20) +
                   " MiB are needed (64 MiB of them stay free for the request log)");
}

Result<std::string> ModelStore::take_in(const std::string& name, const std::string& expected) const {
  std::string partial = partial_path(name), target = folder_ + "/" + name;
  UniqueFd fd(open(partial.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return errno_status(errno, "cannot open " + partial);
  char magic[4] = "";
  if (pread(fd.get(), magic, sizeof magic, 0) != sizeof magic || std::memcmp(magic, "GGUF", sizeof magic) != 0) {
    unlink(partial.c_str());
    return data_loss("not a GGUF file: it does not begin with the letters GGUF (an error page saved as a model?); removed");
  }
  CHECK_ASSIGN(std::string digest, hash_of(fd.get()));
  if (!expected.empty() && digest != expected) {
    unlink(partial.c_str());
    return data_loss("sha256 is " + digest + ", expected " + expected + "; removed");
  }
  if (fchmod(fd.get(), 0644) != 0 || fsync(fd.get()) != 0) return errno_status(errno, "cannot write " + partial);
  CHECK_OK(rename_durably(partial, target));
  return digest;
}

Status copy_file(const std::string& from, const std::string& to, const ModelStore& store) {
  UniqueFd in(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!in.valid()) return errno_status(errno, "cannot open " + from);
  struct stat st;
  if (fstat(in.get(), &st) != 0) return errno_status(errno, "cannot examine " + from);
  if (!S_ISREG(st.st_mode)) return invalid_argument(from + " is not a regular file");
  UniqueFd out(open(to.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!out.valid()) return errno_status(errno, "cannot create " + to);
  int64_t at = lseek(out.get(), 0, SEEK_END);
  if (at > st.st_size || !is_beginning(in.get(), out.get(), at)) at = 0;
  if (ftruncate(out.get(), at) != 0) return errno_status(errno, "cannot write " + to);
  CHECK_OK(store.check_space(st.st_size - at));
  Progress progress("copying", st.st_size);
  std::string buffer(kCopyBytes, 0);
  while (at < st.st_size) {
    ssize_t got = pread(in.get(), buffer.data(), buffer.size(), at);
    if (got < 0) return errno_status(errno, "cannot read " + from);
    if (got == 0) return data_loss(from + " became shorter while it was copied");
    CHECK_OK(write_all_at(out.get(), at, {buffer.data(), static_cast<size_t>(got)}, to));
    at += got;
    progress.at(at);
  }
  return ok_status();
}

}  // namespace tandem::ctl
