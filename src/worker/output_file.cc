#include "worker/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/vfs.h>

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

Status no_room(int err, int64_t n_bytes, int64_t n_free) {
  if (err == EFBIG) {
    return exhausted(fmt::format("the output needs {} bytes, more than a file may have here (ulimit -f, or the file system)", n_bytes));
  }
  return exhausted(fmt::format("the output needs {}, {} are free on its disk{}; free some, or name another folder with --out", mib(n_bytes), mib(n_free),
                               err == EDQUOT ? " and the quota is used up" : ""));
}

}  // namespace

Status reserve_output(int fd, int64_t n_bytes) {
  int err = 0;
  do {
    err = fallocate(fd, 0, 0, n_bytes) == 0 ? 0 : errno;
  } while (err == EINTR);
  if (err == 0) return {};
  const int64_t n_free = free_bytes(fd);
  if (is_full(err)) return no_room(err, n_bytes, std::max<int64_t>(n_free, 0));
  if (err != EOPNOTSUPP && err != ENOSYS) return errno_status(err, "cannot take room for the output");
  return n_free >= 0 && n_free < n_bytes ? no_room(ENOSPC, n_bytes, n_free) : ok_status();
}

Status write_output(int fd, const void* data, size_t n_bytes) {
  const int err = try_write_all(fd, {static_cast<const char*>(data), n_bytes});
  if (is_full(err)) return exhausted("the output's disk is full; free some room, or name another folder with --out");
  return err == 0 ? ok_status() : errno_status(err, "cannot write the output");
}

}  // namespace tandem
