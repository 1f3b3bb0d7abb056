// Chooses the kernel table once at start: best column whose features this CPU has; `force` (config cpu.force_isa
// or TANDEM_FORCE_ISA) overrides; forcing what the CPU lacks is an error that names the missing features.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/kernel_table.h"

namespace tandem {

struct CpuInfo {
  std::string model_name;
  std::vector<std::string> features;  // "avx2", "avx512f", "avx512_vnni", … as /proc/cpuinfo spells them
  int n_usable_cores = 1;             // affinity and cgroup quota honoured
};
CpuInfo detect_cpu();
Result<const KernelTable*> select_kernels(const CpuInfo& cpu, const std::string& force);

}  // namespace tandem
