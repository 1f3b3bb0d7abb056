// Which request is poison: the rule of design.md 2. Pure logic; confined to the supervisor's loop
// thread.
//
// DESIGN. When a worker ends by its own fault, the items (requests, prepare calls) it held without
// any progress since their dispatch are each charged with the crash. After the second charge an
// item is a suspect: it runs only while nothing else without progress is at the worker, and nothing
// joins it before it made progress. A suspect that is charged then crashed alone and is convicted.
// Progress clears the charges, so an item that is merely unlucky costs a short wait. One addition
// to the rule: an item that each time dies at the same place (its replayed prefix is progress since
// dispatch, but no new progress) would never be charged and the worker would crash for ever; such
// stalls count too, after kStallsForCharge of them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace tandem {

class Quarantine {
 public:
  static constexpr int kChargesForSuspect = 2;
  static constexpr int kStallsForCharge = 3;

  // `lane`: which worker, 0 to 63. An item may be at two: its prompt's K/V at one, the rest at another.
  void on_dispatch(uint64_t item, int lane = 0);
  // The worker did something for the item; `is_new`: further than ever before, not a replay.
  void on_progress(uint64_t item, bool is_new);
  void on_end(uint64_t item);  // finished, cancelled, refused: forgotten
  void on_leave(uint64_t item, int lane);  // that worker has done its part
  void on_take_back(uint64_t item);        // it waits again; no worker has it
  // The worker is gone. Returns the items convicted (at most one); all others may be dispatched
  // again.
  std::vector<uint64_t> on_worker_end(bool is_own_fault, int lane = 0);
  bool may_dispatch(uint64_t item) const;

 private:
  struct Item {
    uint64_t lanes = 0;  // bit i: at worker i
    bool has_progress = false;      // since the last dispatch
    bool has_new_progress = false;  // since the last dispatch
    int charges = 0;
    int stalls = 0;  // crashes in a row with replay, but without new progress
    bool is_suspect() const { return charges >= kChargesForSuspect; }
  };
  bool charge(Item* item, bool was_alone);

  std::map<uint64_t, Item> items_;
};

}  // namespace tandem
