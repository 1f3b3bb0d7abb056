#include "supervisor/worker_link.h"

#include <algorithm>
#include <array>

namespace tandem {

const char* worker_state_name(WorkerState state) {
  constexpr const char* kNames[] = {"no_model", "loading", "ready", "backoff", "refused", "stopped"};
  return kNames[static_cast<int>(state)];
}

bool can_serve(std::span<WorkerLink* const> links) {
  std::array<bool, 3> has{};
  for (const WorkerLink* link : links) has[static_cast<size_t>(link->role())] |= is_ready(*link);
  return has[0] || (has[1] && has[2]);
}

const WorkerLink& spokesman(std::span<WorkerLink* const> links) {
  // Most telling first.
  constexpr std::array kTrouble = {WorkerState::kRefused, WorkerState::kNoModel, WorkerState::kStopped,
                                   WorkerState::kBackoff, WorkerState::kLoading, WorkerState::kReady};
  constexpr std::array kServing = {WorkerState::kReady, WorkerState::kLoading, WorkerState::kBackoff,
                                   WorkerState::kStopped, WorkerState::kNoModel, WorkerState::kRefused};
  const bool serves = can_serve(links);
  auto rank = [&](const WorkerLink* link) {
    const auto& order = serves ? kServing : kTrouble;
    auto place = std::find(order.begin(), order.end(), link->state()) - order.begin();
    return place * 2 + (link->role() == ipc::Role::kPrefill ? 1 : 0);
  };
  return **std::min_element(links.begin(), links.end(),
                            [&](const WorkerLink* a, const WorkerLink* b) { return rank(a) < rank(b); });
}

}  // namespace tandem
