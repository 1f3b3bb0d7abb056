// What a worker must know of its machine and can only read from files: asked once, before the sandbox closes.
#pragma once

#include <cstdint>
#include <string>

#include "cpu/cpu_info.h"

namespace tandem {

struct HostFacts {
  CpuInfo cpu;
  std::string program_stamp;  // changes with this program's file: another build may compute other K/V
  int64_t memory_bytes = 0;  // installed, or the control group's limit where that is lower
};

// Opens files below /sys and /proc. Also loads the time zone, which templates ask for.
HostFacts read_host_facts();

// "max", "9223372036854771712", "1073741824": bytes of a control group's memory limit, 0 for none.
int64_t parse_memory_limit(const char* text);

}  // namespace tandem
