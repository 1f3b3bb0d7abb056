// What this processor is and how much of it this process may use.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

namespace tandem {

struct CpuInfo {
  std::string model_name;
  std::vector<std::string> features;  // "avx2", "avx512f", "avx512_vnni", … as /proc/cpuinfo spells them
  int n_usable_cores = 1;             // physical cores in the CPU set, at most what the cgroup's quota pays for
  std::string limit;                  // what bounds n_usable_cores: "cpu set" or "cgroup quota"
  double quota_cores = 0;             // of the cgroup; 0: none
};

// The CPUs this process was given: asked once, early, because a thread that a team has pinned would answer
// with one. Empty when the kernel does not tell.
const cpu_set_t& allowed_cpus();

// Reads CPUID, the CPU set, hwloc's topology and the cgroup's quota. Opens files below /sys and
// /proc: call it before a sandbox closes them (where they are closed, hyperthreads count as cores and no
// quota is seen). Thread-safe.
CpuInfo detect_cpu();

}  // namespace tandem
