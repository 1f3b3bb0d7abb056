#include "base/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "base/unique_fd.h"

namespace tandem {
namespace {

// 0 or errno.
template <typename Write>
int write_with(const Write& write_some, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write_some(bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

Status status_of(int err, const std::string& path) {
  return err == 0 ? ok_status() : errno_status(err, "cannot write " + path);
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "cannot read " + path);
  std::string bytes;
  for (;;) {
    char block[65536];
    const ssize_t n = read(fd.get(), block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, "cannot read " + path);
    if (n == 0) return bytes;
    bytes.append(block, static_cast<size_t>(n));
    if (bytes.size() > kSmallFileBytes)
      return invalid_argument("cannot read " + path + ": it has more than " + std::to_string(kSmallFileBytes >> 20) + " MiB");
  }
}

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

int try_write_all(int fd, std::string_view bytes) {
  return write_with([&](std::string_view rest) { return write(fd, rest.data(), rest.size()); }, bytes);
}

Status write_all(int fd, std::string_view bytes, const std::string& path) { return status_of(try_write_all(fd, bytes), path); }

int try_write_all_at(int fd, int64_t at, std::string_view bytes) {
  const auto write_some = [&](std::string_view rest) {
    return pwrite(fd, rest.data(), rest.size(), at + static_cast<int64_t>(bytes.size() - rest.size()));
  };
  return write_with(write_some, bytes);
}

Status write_all_at(int fd, int64_t at, std::string_view bytes, const std::string& path) {
  return status_of(try_write_all_at(fd, at, bytes), path);
}

Status rename_durably(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return errno_status(errno, "cannot name the file " + to);
  const size_t slash = to.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : to.substr(0, slash + 1);
  const UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) return errno_status(errno, "cannot write folder " + folder);
  return ok_status();
}

Status replace_note(const std::string& path, std::string_view text) {
  const std::string staged = path + "." + std::to_string(getpid()) + ".new";
  const UniqueFd fd(open(staged.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  Status status = fd.valid() ? write_all(fd.get(), text, staged) : errno_status(errno, "cannot create " + staged);
  if (status.ok() && fsync(fd.get()) != 0) status = errno_status(errno, "cannot write " + staged);
  if (status.ok() && rename(staged.c_str(), path.c_str()) != 0) status = errno_status(errno, "cannot replace " + path);
  if (!status.ok()) unlink(staged.c_str());
  return status;
}

}  // namespace tandem
