// What the kernel says of this process's memory. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tandem {

struct ProcessMemory {
  int64_t pss_bytes = 0, rss_bytes = 0;  // PSS: a page shared by n processes counts as 1/n of one
  // Of rss_bytes, what lies in huge pages: private memory, memfds, files.
  int64_t private_huge_bytes = 0, memfd_huge_bytes = 0, file_huge_bytes = 0;
};

// From /proc/self/smaps_rollup, which the first call opens: make it before a sandbox closes /proc. The kernel walks
// all page tables for it (20 ms a GiB in small pages): for starts and reports, not for steps.
// kUnavailable: the kernel does not tell.
Result<ProcessMemory> read_process_memory();
ProcessMemory parse_smaps_rollup(const std::string& text);

}  // namespace tandem
