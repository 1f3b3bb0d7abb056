#include "supervisor/quarantine.h"

#include <algorithm>

namespace tandem {

namespace {
uint64_t bit_of(int lane) { return uint64_t{1} << lane; }
}  // namespace

void Quarantine::on_dispatch(uint64_t item, int lane) {
  Item& i = items_[item];
  i.lanes |= bit_of(lane);
  i.has_progress = i.has_new_progress = false;
}

void Quarantine::on_progress(uint64_t item, bool is_new) {
  auto it = items_.find(item);
  if (it == items_.end()) return;
  Item& i = it->second;
  i.has_progress = true;
  if (!is_new) return;
  i.has_new_progress = true;
  i.charges = i.stalls = 0;
}

void Quarantine::on_leave(uint64_t item, int lane) {
  if (auto it = items_.find(item); it != items_.end()) it->second.lanes &= ~bit_of(lane);
}

void Quarantine::on_take_back(uint64_t item) {
  if (auto it = items_.find(item); it != items_.end()) it->second.lanes = 0;
}

void Quarantine::on_end(uint64_t item) { items_.erase(item); }

// Returns whether the item is convicted.
bool Quarantine::charge(Item* item, bool was_alone) {
  if (!item->has_progress) {
    bool is_convicted = item->is_suspect() && was_alone;
    ++item->charges;
    return is_convicted;
  }
  if (item->has_new_progress) return false;
  bool is_convicted = item->is_suspect() && was_alone;
  if (++item->stalls >= kStallsForCharge)
    item->charges = std::max(item->charges, kChargesForSuspect);
  return is_convicted;
}

std::vector<uint64_t> Quarantine::on_worker_end(bool is_own_fault, int lane) {
  std::vector<uint64_t> convicted;
  // Those that moved ahead since their dispatch are no cause; alone = nobody else is left to blame.
  auto n_blamed = std::count_if(items_.begin(), items_.end(), [&](const auto& entry) {
    return (entry.second.lanes & bit_of(lane)) != 0 && !entry.second.has_new_progress;
  });
  for (auto& [id, item] : items_) {
    if ((item.lanes & bit_of(lane)) == 0) continue;
    if (is_own_fault && charge(&item, n_blamed == 1)) convicted.push_back(id);
    item.lanes &= ~bit_of(lane);
  }
  return convicted;
}

bool Quarantine::may_dispatch(uint64_t item) const {
  auto self = items_.find(item);
  bool is_suspect = self != items_.end() && self->second.is_suspect();
  for (const auto& [id, other] : items_) {
    if (id == item || other.lanes == 0 || other.has_new_progress) continue;
    if (is_suspect || other.is_suspect()) return false;
  }
  return true;
}

}  // namespace tandem
