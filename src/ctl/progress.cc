#include "ctl/progress.h"

#include <unistd.h>

#include <cstdio>

namespace tandem::ctl {

namespace {

long long mib(int64_t bytes) { return static_cast<long long>(bytes >> 20); }

}  // namespace

Progress::Progress(std::string what, int64_t total_bytes)
    : what_(std::move(what)), total_(total_bytes), is_terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (is_terminal_ && shown_ >= 0) std::fputc('\n', stderr);
}

void Progress::at(int64_t bytes) {
  // Hundredths on a terminal, tenths elsewhere; without a total every 16 MiB.
  int64_t step = total_ > 0 ? bytes * (is_terminal_ ? 100 : 10) / total_ : bytes >> 24;
  if (step == shown_) return;
  shown_ = step;
  const char* begin = is_terminal_ ? "\r" : "";
  const char* end = is_terminal_ ? "" : "\n";
  if (total_ > 0)
    std::fprintf(stderr, "%s%s: %lld of %lld MiB (%lld %%)%s", begin, what_.c_str(), mib(bytes), mib(total_),
                 static_cast<long long>(bytes * 100 / total_), end);
  else
    std::fprintf(stderr, "%s%s: %lld MiB%s", begin, what_.c_str(), mib(bytes), end);
  std::fflush(stderr);
}

}  // namespace tandem::ctl
