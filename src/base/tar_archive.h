// A .tar.gz in memory, for the support bundle. Over libarchive, which only tar_archive.cc sees.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

struct ArchiveEntry {
  std::string path;  // relative, "tandem-bundle/status.json"
  std::string content;
};

// Regular files of mode 0600 with one modification time, readable by every tar.
Result<std::string> make_tar_gz(const std::vector<ArchiveEntry>& entries, int64_t mtime_s);

}  // namespace tandem
