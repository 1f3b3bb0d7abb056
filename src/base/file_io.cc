#include "base/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/unique_fd.h"

namespace tandem {
namespace {

template <typename Write>
Status write_with(const Write& write_some, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write_some(bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, "cannot write " + path);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return ok_status();
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

Status write_all(int fd, std::string_view bytes, const std::string& path) {
  return write_with([&](std::string_view rest) { return write(fd, rest.data(), rest.size()); }, bytes, path);
}

Status write_all_at(int fd, int64_t at, std::string_view bytes, const std::string& path) {
  return write_with(
      [&](std::string_view rest) {
        return pwrite(fd, rest.data(), rest.size(), at + static_cast<int64_t>(bytes.size() - rest.size()));
      },
      bytes, path);
}

}  // namespace tandem
