// Chooses the kernel table once at start: best column whose features this CPU has; `force` (config cpu.force_isa
// or TANDEM_FORCE_ISA) overrides; forcing what the CPU lacks is an error that names the missing features.
#pragma once

#include <string>

#include "base/status.h"
#include "cpu/cpu_info.h"
#include "kernels/kernel_table.h"

namespace tandem {

// `force`: a column's name; empty: environment TANDEM_FORCE_ISA, else the best column. Errors:
// kInvalidArgument for a name that no column has, and for a column whose features are missing.
Result<const KernelTable*> select_kernels(const CpuInfo& cpu, const std::string& force);

}  // namespace tandem
