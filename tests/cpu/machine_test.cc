// CPU detection, kernel selection, the team of threads, memory.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <ctime>
#include <numeric>
#include <thread>

#include "cpu/arena.h"
#include "cpu/isa_select.h"
#include "cpu/omp_team.h"

namespace tandem {

TEST_CASE("the CPU is described") {
  const CpuInfo cpu = detect_cpu();
  CHECK(!cpu.model_name.empty());
  CHECK(cpu.n_usable_cores >= 1);
  CHECK(cpu.n_usable_cores <= CPU_COUNT(&allowed_cpus()));
  CHECK((cpu.limit == "cpu set" || cpu.limit == "cgroup quota"));
}

TEST_CASE("kernels: the best column that the features allow, or the forced one") {
  unsetenv("TANDEM_FORCE_ISA");
  CpuInfo bare;
  bare.model_name = "bare";
  CHECK(std::string((*select_kernels(bare, ""))->isa) == "ref");
  const CpuInfo cpu = detect_cpu();
  int n = 0;
  const KernelColumn* columns = kernel_columns(&n);
  CHECK(std::string((*select_kernels(cpu, "ref"))->isa) == "ref");
  for (int i = 0; i < n; ++i) {
    const std::string name = columns[i].table->isa;
    const auto forced = select_kernels(bare, name);
    if (name == "ref") continue;
    REQUIRE(!forced.ok());
    CHECK(forced.status().code() == StatusCode::kInvalidArgument);
    CHECK(forced.status().message().find(name) != std::string::npos);
    std::string first_need = columns[i].needs;
    first_need = first_need.substr(0, first_need.find(' '));
    CHECK(forced.status().message().find(first_need) != std::string::npos);
  }
  const auto unknown = select_kernels(cpu, "avx9000");
  CHECK(unknown.status().code() == StatusCode::kInvalidArgument);
  CHECK(unknown.status().message().find("ref") != std::string::npos);

  setenv("TANDEM_FORCE_ISA", "ref", 1);
  CHECK(std::string((*select_kernels(cpu, ""))->isa) == "ref");
  setenv("TANDEM_FORCE_ISA", "nonsense", 1);
  CHECK(!select_kernels(cpu, "").ok());
  CHECK(std::string((*select_kernels(cpu, "ref"))->isa) == "ref");  // configuration beats environment
  unsetenv("TANDEM_FORCE_ISA");
}

TEST_CASE("a team does each item of each phase once, and phases do not overlap") {
  for (int n_threads : {1, 2, 3, 5}) {
    OmpTeam team(n_threads);
    for (int64_t n_items : {0, 1, 2, 7, 1000}) {
      std::vector<int> sums(static_cast<size_t>(n_items) + 1);
      std::atomic<int> n_wrong = 0;
      for (int run = 0; run < 3; ++run) {
        std::fill(sums.begin(), sums.end(), 0);
        team.run([&](TeamMember& t) {
          if (t.size() != n_threads) ++n_wrong;
          for (int phase = 0; phase < 20; ++phase) {
            // Each phase reads what its neighbours wrote in the phase before.
            t.share(n_items, 1 + phase % 3, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin; i < end; ++i) ++sums[static_cast<size_t>(i)];
            });
            if (t.index() == 0 && std::accumulate(sums.begin(), sums.end(), int64_t{0}) != n_items * (phase + 1)) {
              ++n_wrong;
            }
            t.barrier();
          }
        });
      }
      CHECK(n_wrong == 0);
    }
  }
}

TEST_CASE("an idle team uses no CPU") {
  OmpTeam team(2);
  team.run([](TeamMember& t) { t.barrier(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // past the spinning
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double used_ms = 1e3 * static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  CHECK(used_ms < 10);
}

TEST_CASE("arenas are zeroed, aligned, movable; too much is exhausted, with the size") {
  auto allocated = Arena::allocate(5000000, "a test");
  REQUIRE(allocated.ok());
  Arena arena = std::move(*allocated);
  CHECK(arena.size() >= 5000000);
  CHECK(reinterpret_cast<uintptr_t>(arena.data()) % 4096 == 0);
  CHECK(std::accumulate(arena.data(), arena.data() + arena.size(), 0u) == 0);
  uint8_t* data = arena.data();
  Arena other;
  other = std::move(arena);
  CHECK(other.data() == data);
  CHECK(Arena::allocate(0, "nothing")->data() == nullptr);
  for (size_t n : {size_t{1} << 46, ~size_t{0}}) {
    const auto refused = Arena::allocate(n, "the moon");
    REQUIRE(!refused.ok());
    CHECK(refused.status().code() == StatusCode::kExhausted);
    CHECK(refused.status().message().find("the moon") != std::string::npos);
    CHECK(refused.status().message().find(std::to_string(n)) != std::string::npos);
  }
}

}  // namespace tandem
