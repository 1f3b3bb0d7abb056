// The team of threads that computes a step. One OpenMP region a step; inside it every thread runs the same
// code, and phases share out their work item by item. Between steps OpenMP's workers spin for a few
// milliseconds and then sleep, so an idle team uses no CPU. Confined to the thread that calls run().
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace tandem {

class OmpTeam;

// One thread's view of the running team.
class TeamMember {
 public:
  TeamMember(OmpTeam* team, int index, int size) : team_(team), index_(index), size_(size) {}
  int index() const { return index_; }
  int size() const { return size_; }

  // body(begin, end) on ranges of at most `grain` items that together are [0, n_items), each on whichever
  // thread is free: a core that another process took for a while delays one range, not its half. Every
  // thread of the team must come here; all leave together.
  template <typename Body>
  void share(int64_t n_items, int64_t grain, Body&& body);
  void barrier();

 private:
  OmpTeam* team_;
  int index_;
  int size_;
  uint32_t phase_ = 0;
};

class OmpTeam {
 public:
  // Each thread is pinned to its place on this machine (team_places(): cpu_topology.h), where it has one.
  explicit OmpTeam(int n_threads);
  int n_threads() const { return n_threads_; }
  bool is_pinned() const { return !places_.empty(); }

  template <typename Body>
  void run(Body&& body) {  // body(TeamMember&)
    run_erased([](void* b, TeamMember& member) { (*static_cast<std::remove_reference_t<Body>*>(b))(member); },
               &body);
  }

 private:
  friend class TeamMember;
  static constexpr uint32_t kCounters = 4;
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };
  void run_erased(void (*body)(void*, TeamMember&), void* context);
  void pin_this_thread(int index);
  void wait_for_all(int n_threads);

  int n_threads_;
  uint64_t id_;
  std::vector<std::vector<int>> places_;  // the CPUs of each thread; empty: the kernel places them
  Counter counters_[kCounters];
  alignas(64) std::atomic<int> n_arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

template <typename Body>
void TeamMember::share(int64_t n_items, int64_t grain, Body&& body) {
  // The counter of phase p is cleared during phase p - 2, when nobody can still take from its last use
  // (phase p - 4) nor already take from its next.
  std::atomic<int64_t>& next = team_->counters_[phase_ % OmpTeam::kCounters].next;
  if (index_ == 0) {
    team_->counters_[(phase_ + 2) % OmpTeam::kCounters].next.store(0, std::memory_order_relaxed);
  }
  for (;;) {
    const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
    if (begin >= n_items) break;
    body(begin, begin + grain < n_items ? begin + grain : n_items);
  }
  ++phase_;
  barrier();
}

inline void TeamMember::barrier() {
  if (size_ > 1) team_->wait_for_all(size_);
}

}  // namespace tandem
