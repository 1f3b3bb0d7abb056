#include "base/process_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/unique_fd.h"

namespace tandem {

namespace {

// "Pss_Anon:" is not "Pss:": a key stands at the beginning of its line.
int64_t bytes_of(const std::string& text, const std::string& key) {
  const size_t at = text.find("\n" + key + ":");
  return at == std::string::npos ? 0 : std::strtoll(text.c_str() + at + key.size() + 2, nullptr, 10) * 1024;
}

}  // namespace

ProcessMemory parse_smaps_rollup(const std::string& text) {
  ProcessMemory m;
  m.pss_bytes = bytes_of(text, "Pss");
  m.rss_bytes = bytes_of(text, "Rss");
  m.private_huge_bytes = bytes_of(text, "AnonHugePages");
  m.memfd_huge_bytes = bytes_of(text, "ShmemPmdMapped");
  m.file_huge_bytes = bytes_of(text, "FilePmdMapped");
  return m;
}

Result<ProcessMemory> read_process_memory() {
  static const UniqueFd file(open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return unavailable("/proc/self/smaps_rollup cannot be opened");
  char text[4096];
  size_t size = 0;
  while (size < sizeof text) {
    const ssize_t n = pread(file.get(), text + size, sizeof text - size, static_cast<off_t>(size));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(errno, "cannot read /proc/self/smaps_rollup");
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  return parse_smaps_rollup(std::string(text, size));
}

}  // namespace tandem
