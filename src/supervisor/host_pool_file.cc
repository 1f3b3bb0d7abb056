#include "supervisor/host_pool_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tandem {

Result<HostPoolFile> HostPoolFile::create(const std::string& name) {
  HostPoolFile file;
  file.fd_.reset(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.fd_.valid()) return errno_status(errno, "cannot create the memory file of a KV pool");
  if (fcntl(file.fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    return errno_status(errno, "cannot seal the memory file of a KV pool");
  return file;
}

Status HostPoolFile::resize(int64_t bytes) {
  if (bytes < 1) return invalid_argument("a KV pool must have at least 1 byte, got " + std::to_string(bytes));
  if (bytes <= bytes_) {
    if (bytes < bytes_) (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, bytes, bytes_ - bytes);
    return ok_status();
  }
  if (ftruncate(fd_.get(), bytes) != 0) {
    const int err = errno;
    rlimit limit{};
    std::string why = std::strerror(err);
    if (err == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      why += "; RLIMIT_FSIZE (LimitFSIZE= of the unit) allows " + std::to_string(limit.rlim_cur);
    return exhausted("no memory file of " + std::to_string(bytes) + " bytes for the KV pool (now " +
                     std::to_string(bytes_) + "): " + why + "; lower cache.kv_pool_bytes or raise the limit");
  }
  bytes_ = bytes;
  return ok_status();
}

}  // namespace tandem
