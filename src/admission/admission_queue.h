// The bounded waiting queue of tandemd: who is dispatched next, who is displaced, whose deadline
// has passed. Pure logic over a Clock; knows no more of a request than ordering needs (the rest is
// in supervisor/request_table.h). Confined to the supervisor's loop thread.
//
// DESIGN. Strict order between classes; inside a class the client key that has had the fewest tokens
// goes first (fair share; prompts count when dispatched, answers as they come), among equals the one
// served longest ago, and inside a key the oldest request. A key that comes back counts as having
// had what the least served of those waiting has: it is not punished for idle time, nor does it
// save up. Rejected: turns (a key with answers of 1,000 tokens would hold nearly all places against
// one with answers of 10). Waiting lifts a request by one class for every
// `ageing_us`, and one that was lifted goes ahead of those whose class it has reached by now, but
// only in every kAgedTurn-th turn: low priority always finishes, and at saturation, where all of it
// has been lifted, high priority still finds three of four places. Rejected: ageing without that
// share (once the queue is longer than the ageing time, everybody waits alike), weights between
// classes (an urgent request would wait for bulk work) and one FIFO per class (one key could fill
// it).
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ipc/messages.h"

namespace tandem {

constexpr int kNumPriorities = 3;

struct AdmissionLimits {
  size_t max_queue = 192;  // waiting requests; those requeued after a worker's death don't count
  int64_t ageing_us = 5'000'000;  // waiting time that lifts a request by one class
};

struct WaitingRequest {
  uint64_t id = 0;  // unique among those waiting
  ipc::Priority priority = ipc::Priority::kNormal;
  std::string client;       // key name; fair share is between these
  int64_t enqueued_us = 0;  // when it first came; kept over a requeue: its place among its key's
  int64_t deadline_us = 0;  // monotonic; 0: none
  int64_t waited_us = 0;    // earlier waits together; time at a worker is not waiting
  int64_t since_us = -1;    // when this wait began; -1: enqueued_us
  int64_t n_prompt = 0;     // tokens
};

struct Offer {
  bool is_accepted = false;
  std::optional<uint64_t> displaced;  // the waiting request that made room: it gets the 429
};

class AdmissionQueue {
 public:
  AdmissionQueue(AdmissionLimits limits, const Clock* clock) : limits_(limits), clock_(clock) {}

  // Takes an arrival in. When full, the youngest waiting request of the lowest class makes room if
  // that class is below the arrival's (both as the clients asked, without ageing); else the arrival
  // is refused.
  Offer offer(WaitingRequest request);
  // Takes back what was dispatched before (its worker died): never refused, never displaced.
  void requeue(WaitingRequest request);
  // First in the order above among those `may_run` accepts; the others keep their place.
  std::optional<uint64_t> next(const std::function<bool(uint64_t)>& may_run) const;
  // Removes a request because it is dispatched: its prompt counts towards its key's share, unless it was
  // dispatched before.
  // Returns it as it was, with all its waiting in waited_us.
  WaitingRequest take(uint64_t id);
  void charge(const std::string& client, ipc::Priority priority, int64_t n_tokens);  // of answers
  int64_t waiting_us(uint64_t id) const;  // of this wait; the request waits
  // Removes a request for another reason (cancelled, refused). False: not waiting.
  bool remove(uint64_t id);
  // Its class by now, after ageing.
  int effective_class(const WaitingRequest& request) const;
  std::vector<uint64_t> take_expired();  // removes those whose deadline has come
  std::optional<int64_t> next_deadline_us() const;

  void set_limits(AdmissionLimits limits) { limits_ = limits; }
  size_t size() const { return places_.size(); }
  std::optional<int64_t> oldest_since_us() const;  // since when the one who waits longest has been waiting
  size_t waiting(ipc::Priority priority) const;  // of this class, as the clients asked

  static constexpr int kAgedTurn = 4;

 private:
  // What a key has had in a class.
  struct Share {
    int64_t n_tokens = 0;
    uint64_t last_turn = 0;
    auto operator<=>(const Share&) const = default;
  };
  // Class, key's share, age, id.
  using Rank = std::tuple<int, Share, int64_t, uint64_t>;
  using Lane = std::deque<WaitingRequest>;  // one key's requests of one class, oldest first
  struct Place {
    int priority = 0;
    std::string client;
    int64_t deadline_us = 0, since_us = 0;
    bool is_requeued = false;
  };

  Share share(const std::string& client, int priority) const;
  int64_t least_share(int priority) const;
  void insert(WaitingRequest request, bool is_requeued);
  WaitingRequest extract(uint64_t id);
  void forget_oldest_key();
  std::optional<uint64_t> youngest_below(int priority) const;

  AdmissionLimits limits_;
  const Clock* clock_;
  std::array<std::map<std::string, Lane>, kNumPriorities> lanes_;
  std::unordered_map<uint64_t, Place> places_;
  size_t n_requeued_ = 0;
  std::set<std::pair<int64_t, uint64_t>> deadlines_;
  std::map<std::string, std::array<Share, kNumPriorities>> shares_;  // of a key by class
  std::array<int64_t, kNumPriorities> level_{};  // share of the key that was dispatched last
  uint64_t turn_ = 0;
  int n_since_aged_ = 0;  // turns since a lifted request went ahead of others
};

}  // namespace tandem
