#include "admission/degrade_policy.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace tandem {
namespace {

struct Highest {
  double value = -1;  // -1: no cause of the rung has a value
  std::string why;
};

Highest highest_of(const Rung& rung, const Load& load, bool is_queue_full) {
  Highest highest;
  for (LoadCause cause : rung.causes) {
    auto value = load.value(cause);
    if (!value || *value <= highest.value) continue;
    char text[48];
    std::snprintf(text, sizeof text, "%s %.2f", load_cause_name(cause), *value);
    highest = {*value, text};
  }
  if (rung.kind == RungKind::kShed && is_queue_full) highest = {1, "queue full"};
  return highest;
}

// Keeps in `*since_us` from when on `is_so` has been true; 0: it isn't.
void note_since(bool is_so, int64_t now_us, int64_t* since_us) {
  if (!is_so)
    *since_us = 0;
  else if (*since_us == 0)
    *since_us = now_us;
}

}  // namespace

DegradePolicy::DegradePolicy(Ladder ladder) : ladder_(std::move(ladder)) {
  for (int i = 0; i < kNumRungs; ++i) states_[static_cast<size_t>(i)].skip_reason = "not on the ladder";
  for (const Rung& rung : ladder_.rungs) state(rung.kind).skip_reason.clear();
}

void DegradePolicy::replace_ladder(Ladder ladder) {
  DegradePolicy fresh(std::move(ladder));
  const auto before = std::exchange(states_, fresh.states_);
  for (const Rung& rung : ladder_.rungs) {
    const State& old = before[static_cast<size_t>(rung.kind)];
    if (state(rung.kind).skip_reason.empty()) state(rung.kind) = old;
  }
  ladder_ = std::move(fresh.ladder_);
}

bool DegradePolicy::has(RungKind kind) const {
  return std::any_of(ladder_.rungs.begin(), ladder_.rungs.end(), [&](const Rung& rung) { return rung.kind == kind; });
}

void DegradePolicy::skip(RungKind kind, std::string reason) {
  state(kind).skip_reason = std::move(reason);
  state(kind).is_active = state(kind).sheds_normal = false;
  state(kind).pin.reset();
}

bool DegradePolicy::pin(RungKind kind, std::optional<bool> is_active) {
  if (!state(kind).skip_reason.empty()) return false;
  state(kind).pin = is_active;
  if (!is_active) state(kind).changed_us = INT64_MIN / 2;  // an operator's word is no flapping: the load decides at once
  return true;
}

std::vector<DegradePolicy::Change> DegradePolicy::turn(const Load& load, bool is_queue_full, int64_t now_us) {
  std::vector<Change> changes;
  for (const Rung& rung : ladder_.rungs)
    if (auto change = turn_rung(rung, load, is_queue_full, now_us)) changes.push_back(std::move(*change));
  return changes;
}

std::optional<DegradePolicy::Change> DegradePolicy::turn_rung(const Rung& rung, const Load& load, bool is_queue_full,
                                                              int64_t now_us) {
  State& s = state(rung.kind);
  if (!s.skip_reason.empty()) return std::nullopt;
  Highest now = highest_of(rung, load, is_queue_full);
  note_since(now.value >= rung.enter, now_us, &s.above_since_us);
  note_since(now.value < rung.leave, now_us, &s.below_since_us);
  bool wanted = s.is_active;
  if (!s.is_active && s.above_since_us != 0 && now_us - s.above_since_us >= rung.hold_us) wanted = true;
  if (s.is_active && s.below_since_us != 0 && now_us - s.below_since_us >= rung.leave_hold_us) wanted = false;
  bool may_change = now_us - s.changed_us >= rung.dwell_us;
  std::string why = now.value < 0 ? "no load is known" : now.why;
  if (s.pin) wanted = *s.pin, may_change = true, why = "pinned";
  if (wanted != s.is_active && may_change) {
    s.is_active = wanted;
    s.changed_us = now_us;
    s.sheds_normal = false;
    return Change{rung.kind, wanted, why};
  }
  // Low priority alone was not enough.
  if (rung.kind == RungKind::kShed && s.is_active && !s.pin) {
    bool is_above = s.above_since_us != 0;
    if (is_above && now_us - s.changed_us >= rung.then_normal_us) s.sheds_normal = true;  // until the rung is left
  }
  return std::nullopt;
}

int64_t DegradePolicy::max_tokens() const {
  if (!is_active(RungKind::kTokens)) return 0;
  for (const Rung& rung : ladder_.rungs)
    if (rung.kind == RungKind::kTokens) return rung.max_tokens;
  return 0;
}

std::vector<RungKind> DegradePolicy::active() const {
  std::vector<RungKind> kinds;
  for (const Rung& rung : ladder_.rungs)
    if (is_active(rung.kind)) kinds.push_back(rung.kind);
  return kinds;
}

}  // namespace tandem
