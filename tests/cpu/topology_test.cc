// Places of a team's threads on machines that hwloc makes up, quotas of control groups in made-up trees, and a team
// on cores of different speed.
#include <hwloc.h>
#include <stdlib.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cpu/cgroup_quota.h"
#include "cpu/cpu_info.h"
#include "cpu/cpu_topology.h"
#include "cpu/omp_team.h"
#include "tests/temp_folder.h"

namespace tandem {

namespace {

cpu_set_t set_of(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  return set;
}

std::vector<int> range(int begin, int end) {
  std::vector<int> all;
  for (int i = begin; i < end; ++i) all.push_back(i);
  return all;
}

struct Synthetic {
  hwloc_topology_t raw = nullptr;
  explicit Synthetic(const char* description) {
    REQUIRE(hwloc_topology_init(&raw) == 0);
    REQUIRE(hwloc_topology_set_synthetic(raw, description) == 0);
    REQUIRE(hwloc_topology_load(raw) == 0);
  }
  ~Synthetic() { hwloc_topology_destroy(raw); }
  void register_kind(const std::vector<int>& cpus, int efficiency) {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (int cpu : cpus) hwloc_bitmap_set(set, static_cast<unsigned>(cpu));
    REQUIRE(hwloc_cpukinds_register(raw, set, efficiency, 0, nullptr, 0) == 0);
    hwloc_bitmap_free(set);
  }
};

using Places = std::vector<std::vector<int>>;

}  // namespace

TEST_CASE("places: one core each, siblings of a core come after all cores") {
  const Synthetic machine("pack:1 core:4 pu:2");
  const CpuTopology t = topology_of(machine.raw, set_of(range(0, 8)));
  CHECK(t.cores.size() == 4);
  CHECK(t.n_cpus() == 8);
  CHECK(t.n_nodes() == 1);
  CHECK(team_places(t, 4) == Places{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  CHECK(team_places(t, 8) == Places{{0}, {2}, {4}, {6}, {1}, {3}, {5}, {7}});
  for (int n : {1, 2, 3, 5, 9, 100}) CHECK(team_places(t, n).empty());  // the kernel's business
  CHECK(describe(t) == "4 cores, 8 hardware threads, 1 memory node");
}

TEST_CASE("places: only CPUs of the set count, and a core of which one thread is left is one") {
  const Synthetic machine("pack:2 core:2 pu:2");
  const CpuTopology t = topology_of(machine.raw, set_of({1, 4, 5}));
  CHECK(t.cores.size() == 2);
  CHECK(t.n_cpus() == 3);
  CHECK(team_places(t, 2) == Places{{1}, {4, 5}});
  CHECK(team_places(t, 3) == Places{{1}, {4}, {5}});
}

TEST_CASE("places: two workers with sets of their own never share a core") {
  const Synthetic machine("pack:1 core:2 pu:1");
  for (int cpu : {0, 1}) {
    const CpuTopology t = topology_of(machine.raw, set_of({cpu}));
    CHECK(t.cores.size() == 1);
    CHECK(t.cores[0].cpus == std::vector<int>{cpu});
  }
}

TEST_CASE("places: fast cores of a hybrid processor first") {
  Synthetic machine("pack:1 core:6 pu:1");
  machine.register_kind({0, 1, 2, 3}, 0);  // as on boards that count their small cores first
  machine.register_kind({4, 5}, 10);
  const CpuTopology t = topology_of(machine.raw, set_of(range(0, 6)));
  CHECK(t.n_kinds() == 2);
  CHECK(team_places(t, 6) == Places{{4}, {5}, {0}, {1}, {2}, {3}});
  CHECK(describe(t) == "6 cores (4 of them slower), 6 hardware threads, 1 memory node");
  const CpuTopology small = topology_of(machine.raw, set_of({0, 1}));
  CHECK(small.n_kinds() == 1);
}

TEST_CASE("places: cores of one memory node lie together") {
  const Synthetic machine("numa:2 core:2 pu:1");
  const CpuTopology t = topology_of(machine.raw, set_of(range(0, 4)));
  CHECK(t.n_nodes() == 2);
  CHECK(t.cores[1].numa_node == 0);
  CHECK(t.cores[2].numa_node == 1);
}

TEST_CASE("places: this machine's are within the set it was given") {
  const CpuTopology& t = machine_topology();
  CHECK(t.n_cpus() == CPU_COUNT(&allowed_cpus()));
  for (const CpuCore& core : t.cores) {
    for (int cpu : core.cpus) CHECK(CPU_ISSET(static_cast<size_t>(cpu), &allowed_cpus()));
  }
  const int n = static_cast<int>(t.cores.size());
  OmpTeam team(n);
  CHECK(team.is_pinned() == (n > 1));
  std::atomic<int> n_wrong{0};
  team.run([&](TeamMember& member) {
    cpu_set_t now;
    CPU_ZERO(&now);
    sched_getaffinity(0, sizeof now, &now);
    const cpu_set_t wanted = n > 1 ? set_of(t.cores[static_cast<size_t>(member.index())].cpus) : allowed_cpus();
    if (!CPU_EQUAL(&now, &wanted)) ++n_wrong;
  });
  CHECK(n_wrong == 0);
}

TEST_CASE("quota: texts of both versions") {
  CHECK(quota_of("max 100000") == 0);
  CHECK(quota_of("-1 100000") == 0);
  CHECK(quota_of("") == 0);
  CHECK(quota_of(" ") == 0);
  CHECK(quota_of("100000 0") == 0);
  CHECK(quota_of("garbage 5") == 0);
  CHECK(quota_of("200000 100000") == 2);
  CHECK(quota_of("350000 100000") == 3.5);
  CHECK(threads_of_quota(0) == 0);
  CHECK(threads_of_quota(0.5) == 1);
  CHECK(threads_of_quota(1.5) == 1);  // the second thread would be throttled half of the time
  CHECK(threads_of_quota(2) == 2);
  CHECK(threads_of_quota(3.5) == 3);
}

TEST_CASE("quota: version 2, an ancestor's binds too") {
  testing::TempFolder tree;
  CHECK(cgroup_quota("0::/a/b\n", tree.path) == 0);
  tree.put("a/b/cpu.max", "400000 100000\n");
  CHECK(cgroup_quota("0::/a/b\n", tree.path) == 4);
  tree.put("a/cpu.max", "150000 100000\n");
  CHECK(cgroup_quota("0::/a/b\n", tree.path) == 1.5);
  tree.put("a/b/cpu.max", "max 100000\n");
  CHECK(cgroup_quota("0::/a/b\n", tree.path) == 1.5);
  CHECK(cgroup_quota("0::/other\n", tree.path) == 0);
  tree.put("cpu.max", "300000 100000\n");  // a container's own root
  CHECK(cgroup_quota("0::/not/visible/here\n", tree.path) == 3);
}

TEST_CASE("quota: version 1, under the controller's name or all of them") {
  for (const char* mount : {"cpu", "cpu,cpuacct"}) {
    testing::TempFolder tree;
    const std::string group = std::string(mount) + "/box";
    tree.put(group + "/cpu.cfs_quota_us", "-1\n");
    tree.put(group + "/cpu.cfs_period_us", "100000\n");
    const std::string membership = "9:memory:/x\n4:cpu,cpuacct:/box\n2:cpuset:/y\nnonsense\n";
    CHECK(cgroup_quota(membership, tree.path) == 0);
    tree.put(group + "/cpu.cfs_quota_us", "250000\n");
    CHECK(cgroup_quota(membership, tree.path) == 2.5);
    CHECK(cgroup_quota("4:cpuset:/box\n", tree.path) == 0);  // not the controller that has quotas
  }
}

TEST_CASE("a slow core gets less work, and the results are the same bits") {
  constexpr int kItems = 240;
  const auto run = [](int n_threads, int slow_thread, std::vector<float>* results) {
    OmpTeam team(n_threads);
    std::vector<int> counts(static_cast<size_t>(n_threads));
    results->assign(kItems, 0);
    team.run([&](TeamMember& member) {
      member.share(kItems, 2, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          (*results)[static_cast<size_t>(i)] = 1.0f / static_cast<float>(i + 3);
          ++counts[static_cast<size_t>(member.index())];
          // Sleeping, not computing: also true on a machine that is busy otherwise.
          std::this_thread::sleep_for(std::chrono::microseconds(member.index() == slow_thread ? 2000 : 250));
        }
      });
    });
    return counts;
  };
  std::vector<float> alone, shared;
  run(1, -1, &alone);
  const std::vector<int> counts = run(4, 1, &shared);
  CHECK(counts[0] + counts[1] + counts[2] + counts[3] == kItems);
  CHECK(counts[1] > 0);
  CHECK(counts[1] * 2 < counts[0]);
  CHECK(counts[1] * 2 < counts[3]);
  CHECK(alone == shared);
}

}  // namespace tandem
