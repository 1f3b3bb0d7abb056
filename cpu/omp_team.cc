#include "cpu/omp_team.h"

#include <omp.h>
#include <sched.h>

#include "base/check.h"
#include "cpu/cpu_info.h"
#include "cpu/cpu_topology.h"

namespace tandem {
namespace {

std::atomic<uint64_t> next_team_id{1};
thread_local uint64_t pinned_for_team = 0;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

OmpTeam::OmpTeam(int n_threads)
    : n_threads_(n_threads), id_(next_team_id++), places_(team_places(machine_topology(), n_threads)) {
  CHECK(n_threads >= 1 && n_threads <= 1024);
}

void OmpTeam::run_erased(void (*body)(void*, TeamMember&), void* context) {
  for (Counter& counter : counters_) counter.next.store(0, std::memory_order_relaxed);
#pragma omp parallel num_threads(n_threads_)
  {
    const int index = omp_get_thread_num();
    pin_this_thread(index);
    TeamMember member(this, index, omp_get_num_threads());
    body(context, member);
  }
}

void OmpTeam::pin_this_thread(int index) {
  if (pinned_for_team == id_) return;
  pinned_for_team = id_;
  cpu_set_t set = allowed_cpus();  // also undoes what an earlier team of this thread did
  if (is_pinned()) {
    CPU_ZERO(&set);
    for (int cpu : places_[static_cast<size_t>(index)]) CPU_SET(static_cast<size_t>(cpu), &set);
  }
  if (CPU_COUNT(&set) > 0) sched_setaffinity(0, sizeof(set), &set);  // a refusal costs speed only
}

void OmpTeam::wait_for_all(int n_threads) {
  // libgomp's own barrier makes a futex system call each time; a decode step has some two hundred barriers.
  // About 0.1 ms: longer than nearly all phases of a decode step, and little against a phase of a long one.
  constexpr int kSpins = 4000;
  const uint32_t generation = generation_.load(std::memory_order_acquire);
  if (n_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads) {
    n_arrived_.store(0, std::memory_order_relaxed);
    generation_.store(generation + 1, std::memory_order_release);
    generation_.notify_all();  // no system call while nobody sleeps
    return;
  }
  for (int i = 0; i < kSpins; ++i) {
    if (generation_.load(std::memory_order_acquire) != generation) return;
    relax();
  }
  while (generation_.load(std::memory_order_acquire) == generation) {
    generation_.wait(generation, std::memory_order_acquire);
  }
}

}  // namespace tandem
