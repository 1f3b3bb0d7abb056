#include "admission/dispatch_gate.h"

#include <algorithm>
#include <utility>

namespace tandem {

DispatchGate::Decision DispatchGate::ask(int priority, size_t n_sequences) const {
  if (n_sequences_ == 0 || n_sequences_ + n_sequences <= limit_) return {Verdict::kDispatch, 0};
  size_t n_recallable = 0;
  const std::pair<const uint64_t, Entry>* last = nullptr;
  for (const auto& entry : at_worker_) {
    if (entry.second.reached <= priority) continue;
    n_recallable += entry.second.n_sequences;
    if (last == nullptr || std::pair(entry.second.reached, entry.second.turn) >
                               std::pair(last->second.reached, last->second.turn))
      last = &entry;
  }
  // Nobody is recalled in vain.
  bool is_enough = n_recallable == n_sequences_ || n_sequences_ - n_recallable + n_sequences <= limit_;
  if (last == nullptr || !is_enough) return {Verdict::kWait, 0};
  return {Verdict::kRecall, last->first};
}

void DispatchGate::on_dispatch(uint64_t id, int reached, size_t n_sequences) {
  at_worker_[id] = {reached, n_sequences, next_turn_++};
  n_sequences_ += n_sequences;
}

void DispatchGate::on_choice_end(uint64_t id, size_t n) {
  auto it = at_worker_.find(id);
  if (it == at_worker_.end()) return;
  n = std::min(n, it->second.n_sequences);
  it->second.n_sequences -= n;
  n_sequences_ -= n;
}

void DispatchGate::on_leave(uint64_t id) {
  auto it = at_worker_.find(id);
  if (it == at_worker_.end()) return;
  n_sequences_ -= it->second.n_sequences;
  at_worker_.erase(it);
}

}  // namespace tandem
