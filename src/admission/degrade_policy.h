// Which rungs of the ladder are active, from the load of each second. Pure logic, confined to the supervisor's loop
// thread.
//
// DESIGN. Every rung decides alone from the causes it helps: entered when one of them stays at or above `enter` for
// `hold`, left when all stay below `leave` for `leave_hold` (a lull of some seconds is not the overload's end), and never
// changed twice within `dwell`; so no load curve makes it flap. A cause without a value neither enters nor holds a rung.
// An operator's pin beats all of that, until it is cleared; then the load decides without waiting for `dwell`.
// Rejected: one load for all rungs (memory pressure would turn logprobs off, which helps nothing).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "admission/degrade_ladder.h"

namespace tandem {

class DegradePolicy {
 public:
  explicit DegradePolicy(Ladder ladder);
  // Rungs that are on the old ladder too stay on, off, pinned or skipped as they are; the others begin off.
  void replace_ladder(Ladder ladder);

  struct Change {
    RungKind kind;
    bool is_active;
    std::string why;  // "queue 0.93", "pinned"
  };
  // What changed now. `is_queue_full` counts for the rung shed like a load of 1.
  std::vector<Change> turn(const Load& load, bool is_queue_full, int64_t now_us);

  bool is_active(RungKind kind) const { return state(kind).is_active; }
  // Shed normal priority too?
  bool sheds_normal() const { return state(RungKind::kShed).sheds_normal; }
  int64_t max_tokens() const;  // the cap while the rung tokens is active; 0: none
  std::vector<RungKind> active() const;

  // True or false: this rung is so, whatever the load; nothing: the load decides again. False: no such rung on the
  // ladder, or it is skipped.
  bool pin(RungKind kind, std::optional<bool> is_active);
  std::optional<bool> pinned(RungKind kind) const { return state(kind).pin; }
  // The rung does nothing on this box (weights-4bit without a lean set): never active, and shown with the reason.
  void skip(RungKind kind, std::string reason);
  const std::string& skip_reason(RungKind kind) const { return state(kind).skip_reason; }
  const Ladder& ladder() const { return ladder_; }
  bool has(RungKind kind) const;  // on the ladder, skipped or not

 private:
  struct State {
    bool is_active = false, sheds_normal = false;
    std::optional<bool> pin;
    std::string skip_reason;
    int64_t changed_us = INT64_MIN / 2;
    int64_t above_since_us = 0, below_since_us = 0;  // 0: not above `enter`, not below `leave`
  };
  const State& state(RungKind kind) const { return states_[static_cast<size_t>(kind)]; }
  State& state(RungKind kind) { return states_[static_cast<size_t>(kind)]; }
  std::optional<Change> turn_rung(const Rung& rung, const Load& load, bool is_queue_full, int64_t now_us);

  Ladder ladder_;
  std::array<State, kNumRungs> states_;
};

}  // namespace tandem
