// The swap tier: sequences that grow past the device, and those that come back to it.
#include <algorithm>

#include "engine/scheduler.h"

namespace tandem {

// Pages for positions [0, n_tokens). What only slows a sequence down is used up before another is
// preempted: ended lanes, then, for one that is alone, its own first pages.
bool Scheduler::grow(Sequence* s, int n_tokens) {
  while (!s->pages.grow(n_tokens)) {
    if (!lanes_.empty()) {
      lanes_.pop_back();
    } else if (running_.size() != 1 || !spill(s, n_tokens)) {
      return false;
    }
  }
  return true;
}

bool Scheduler::spill(Sequence* s, int n_tokens) {
  if (!options_.attends_to_swapped) return false;
  int n_entries = (n_tokens + options_.page_size - 1) / options_.page_size;
  for (int g = 0; g < pool_.n_groups(); ++g) {
    if (n_entries - s->pages.n_entries(g) <= pool_.n_free(g)) continue;
    do {
      if (s->pages.spill(g, s->n_computed, &plan_.copies)) return true;
    } while (pool_.n_swap_free(g) == 0 && drop_swapped());
    return false;
  }
  return false;
}

// The least important of those swapped out makes room: it is computed again.
bool Scheduler::drop_swapped() {
  Sequence* last = nullptr;
  for (Sequence* s : waiting_) {
    if (!s->is_swapped()) continue;
    // One whose prompt was lent goes back, and all its choices with it: not while one of them runs.
    bool is_tied = s->request->request.loan && std::any_of(running_.begin(), running_.end(), [&](const Sequence* r) {
                     return r->request == s->request;
                   });
    if (is_tied) continue;
    if (last == nullptr || std::pair(s->priority_class, s->request->arrival) >
                               std::pair(last->priority_class, last->request->arrival))
      last = s;
  }
  if (last == nullptr) return false;
  if (last->request->request.loan) {
    hand_back(last->request->request.id, true, "its pages went to others");
    return true;
  }
  last->pages.clear();
  last->n_computed = 0;
  ++counters_.preemptions;
  return true;
}

// Pages of a swapped sequence that is admitted. False: they were too many for the device (it is not
// alone), and it starts over.
bool Scheduler::bring_back(Sequence* s) {
  bool is_whole = s->pages.swap_in(s->n_computed, &plan_.copies);
  s->published = PrefixCache::Chain::start(s->request->request.place);
  if (is_whole || running_.empty()) return true;
  s->pages.clear();
  s->n_computed = 0;
  ++counters_.preemptions;
  return false;
}

}  // namespace tandem
