#include "worker/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file_io.h"
#include "base/mib.h"

namespace tandem {

namespace {

bool is_full(int err) { return err == ENOSPC || err == EDQUOT || err == EFBIG; }

// -1: the file system does not say.
int64_t free_bytes(int fd) {
  struct statfs info {};
  if (fstatfs(fd, &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_bsize);
}

// Of what an earlier run left.
int64_t taken_bytes(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? static_cast<int64_t>(info.st_blocks) * 512 : 0;
}

Status no_room(int err, int64_t n_bytes, int64_t n_free) {
  if (err == EFBIG) {
    return exhausted(fmt::format("the output needs {} bytes, more than a file may have here (ulimit -f, or the file system)", n_bytes));
  }
  return exhausted(fmt::format("the output needs {}, {} are free on its disk{}; free some, or name another folder with --out", mib(n_bytes), mib(n_free),
                               err == EDQUOT ? " and the quota is used up" : ""));
}

// Of a write or sync; err may be 0.
Status written(int err, const char* action) {
  if (is_full(err)) return exhausted("the output's disk is full; free some room, or name another folder with --out");
  return err == 0 ? ok_status() : errno_status(err, action);
}

}  // namespace

Status reserve_output(int fd, int64_t n_bytes) {
  rlimit most{};  // fallocate() does not look at it where the size stays
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < static_cast<rlim_t>(n_bytes)) return no_room(EFBIG, n_bytes, 0);
  int err = 0;
  do {
    err = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, n_bytes) == 0 ? 0 : errno;
  } while (err == EINTR);
  if (err == 0) return {};
  const int64_t n_free = free_bytes(fd);
  if (is_full(err)) return no_room(err, n_bytes, std::max<int64_t>(n_free, 0));
  if (err != EOPNOTSUPP && err != ENOSYS) return errno_status(err, "cannot take room for the output");
  return n_free >= 0 && n_free < n_bytes - taken_bytes(fd) ? no_room(ENOSPC, n_bytes, n_free) : ok_status();
}

Status write_output(int fd, int64_t at, const void* data, size_t n_bytes) {
  return written(try_write_all_at(fd, at, {static_cast<const char*>(data), n_bytes}), "cannot write the output");
}

Status sync_output(int fd) {
  return written(fdatasync(fd) == 0 ? 0 : errno, "cannot write the output through to its disk");
}

Status cut_output(int fd, int64_t n_bytes) {
  return ftruncate(fd, n_bytes) == 0 ? ok_status() : errno_status(errno, "cannot cut the output");
}

Result<std::string> read_output(int fd, int64_t at, size_t n_bytes) {
  std::string bytes(n_bytes, '\0');
  size_t n_read = 0;
  while (n_read < n_bytes) {
    const ssize_t n = pread(fd, bytes.data() + n_read, n_bytes - n_read, at + static_cast<int64_t>(n_read));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, "cannot read the output");
    if (n == 0) break;
    n_read += static_cast<size_t>(n);
  }
  bytes.resize(n_read);
  return bytes;
}

Result<int64_t> output_size(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return errno_status(errno, "cannot look at the output");
  return static_cast<int64_t>(info.st_size);
}

}  // namespace tandem
