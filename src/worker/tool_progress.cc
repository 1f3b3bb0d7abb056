#include "worker/tool_progress.h"

#include <unistd.h>

#include <cstdio>

namespace tandem {

ToolProgress::ToolProgress(const char* what, int64_t total, int64_t unit_size, const char* unit)
    : what_(what), unit_(unit), total_(total), unit_size_(unit_size), is_terminal_(isatty(STDERR_FILENO) == 1) {}

void ToolProgress::at(int64_t done) {
  const int64_t step = done * (is_terminal_ ? 100 : 10) / total_;
  if (step == shown_) return;
  shown_ = step;
  const int filled = static_cast<int>(done * 30 / total_);
  std::fprintf(stderr, "%s%s [%.*s%.*s] %lld %%, %lld of %lld %s%s", is_terminal_ ? "\r" : "", what_, filled,
               "##############################", 30 - filled, "..............................",
               static_cast<long long>(done * 100 / total_), static_cast<long long>(done / unit_size_),
               static_cast<long long>(total_ / unit_size_), unit_, is_terminal_ && done < total_ ? "" : "\n");
}

}  // namespace tandem
