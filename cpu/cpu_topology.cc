#include "cpu/cpu_topology.h"

#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "cpu/cpu_info.h"

namespace tandem {

namespace {

struct BitmapFree {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapFree>;
struct TopologyFree {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};

// hwloc numbers kinds from the least efficient in performance up, and knows none on uniform processors.
int kind_of(hwloc_topology_t topology, hwloc_const_cpuset_t core) {
  const int n = hwloc_cpukinds_get_nr(topology, 0);
  const int kind = n > 1 ? hwloc_cpukinds_get_by_cpuset(topology, core, 0) : -1;
  return kind < 0 ? 0 : n - 1 - kind;
}

CpuCore make_core(hwloc_topology_t topology, hwloc_const_cpuset_t cpus) {
  CpuCore core;
  int cpu = -1;
  while ((cpu = hwloc_bitmap_next(cpus, cpu)) >= 0) core.cpus.push_back(cpu);
  core.kind = kind_of(topology, cpus);
  const Bitmap nodes(hwloc_bitmap_alloc());
  if (hwloc_cpuset_to_nodeset(topology, cpus, nodes.get()) == 0)
    core.numa_node = std::max(0, hwloc_bitmap_first(nodes.get()));
  return core;
}

CpuTopology every_cpu_a_core(const cpu_set_t& allowed) {
  CpuTopology found;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) found.cores.push_back({{cpu}, 0, 0});
  }
  return found;
}

}  // namespace

int CpuTopology::n_cpus() const {
  size_t n = 0;
  for (const CpuCore& core : cores) n += core.cpus.size();
  return static_cast<int>(n);
}

int CpuTopology::n_kinds() const {
  std::set<int> kinds;
  for (const CpuCore& core : cores) kinds.insert(core.kind);
  return static_cast<int>(kinds.size());
}

int CpuTopology::n_nodes() const {
  std::set<int> nodes;
  for (const CpuCore& core : cores) nodes.insert(core.numa_node);
  return static_cast<int>(nodes.size());
}

CpuTopology topology_of(hwloc_topology* topology, const cpu_set_t& allowed) {
  CpuTopology found;
  const Bitmap wanted(hwloc_bitmap_alloc()), own(hwloc_bitmap_alloc());
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &allowed)) hwloc_bitmap_set(wanted.get(), static_cast<unsigned>(cpu));
  }
  const hwloc_obj_type_t type =
      hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, type, core)) != nullptr;) {
    hwloc_bitmap_and(own.get(), core->cpuset, wanted.get());
    if (!hwloc_bitmap_iszero(own.get())) found.cores.push_back(make_core(topology, own.get()));
  }
  // hwloc gives them by position; the kernel's numbers may jump between packages.
  std::stable_sort(found.cores.begin(), found.cores.end(), [](const CpuCore& a, const CpuCore& b) {
    return a.kind != b.kind ? a.kind < b.kind : a.numa_node < b.numa_node;
  });
  return found;
}

const CpuTopology& machine_topology() {
  static const CpuTopology topology = [] {
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0) return every_cpu_a_core(allowed_cpus());
    const std::unique_ptr<hwloc_topology, TopologyFree> loaded(raw);
    CpuTopology found;
    if (hwloc_topology_load(raw) == 0) found = topology_of(raw, allowed_cpus());
    // Fewer CPUs than the kernel lets us use: hwloc could not read all of it.
    return found.n_cpus() == CPU_COUNT(&allowed_cpus()) ? found : every_cpu_a_core(allowed_cpus());
  }();
  return topology;
}

std::vector<std::vector<int>> team_places(const CpuTopology& topology, int n_threads) {
  std::vector<std::vector<int>> places;
  if (n_threads < 2) return places;
  if (n_threads == static_cast<int>(topology.cores.size())) {
    for (const CpuCore& core : topology.cores) places.push_back(core.cpus);
  } else if (n_threads == topology.n_cpus()) {
    for (size_t sibling = 0; static_cast<int>(places.size()) < n_threads; ++sibling) {
      for (const CpuCore& core : topology.cores) {
        if (sibling < core.cpus.size()) places.push_back({core.cpus[sibling]});
      }
    }
  }
  return places;
}

std::string describe(const CpuTopology& topology) {
  const auto n_slow = std::count_if(topology.cores.begin(), topology.cores.end(),
                                    [](const CpuCore& core) { return core.kind > 0; });
  const auto count = [](int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); };
  return fmt::format("{}{}, {}, {}", count(static_cast<int64_t>(topology.cores.size()), "core"),
                     n_slow > 0 ? fmt::format(" ({} of them slower)", n_slow) : std::string(),
                     count(topology.n_cpus(), "hardware thread"), count(topology.n_nodes(), "memory node"));
}

}  // namespace tandem
