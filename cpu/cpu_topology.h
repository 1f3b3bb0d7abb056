// Cores, hardware threads, kinds of cores and memory nodes that this process may use, and where the threads of a team
// go on them.
#pragma once

#include <sched.h>

#include <string>
#include <vector>

struct hwloc_topology;

namespace tandem {

struct CpuCore {
  std::vector<int> cpus;  // its hardware threads in the process's CPU set, ascending
  int kind = 0;           // 0: the fastest there is; hybrid processors have slower ones
  int numa_node = 0;
};

struct CpuTopology {
  std::vector<CpuCore> cores;  // in the order in which a team takes them: fast ones first, then node by node
  int n_cpus() const;
  int n_kinds() const;
  int n_nodes() const;
};

// Of a loaded hwloc topology, cut to `allowed`. Without cores in it (some boards and virtual machines) each hardware
// thread counts as one.
CpuTopology topology_of(hwloc_topology* topology, const cpu_set_t& allowed);

// Of this machine and allowed_cpus(): read once, at the first call, from files below /sys. Where those are closed each
// CPU of the set counts as a core. Thread-safe.
const CpuTopology& machine_topology();

// The CPUs on which thread i of a team may run. One core each where there are as many threads as cores, one hardware
// thread each where there are as many as those, the first of every core before the second of any. Empty: the team
// is smaller or larger, and the kernel places it: two half-sized teams must not meet on the first cores.
std::vector<std::vector<int>> team_places(const CpuTopology& topology, int n_threads);

// "4 cores (2 of them slower), 8 hardware threads, 1 memory node"
std::string describe(const CpuTopology& topology);

}  // namespace tandem
