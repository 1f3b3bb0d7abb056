// How much is dispatched to a worker at a time, and who is taken back from it for somebody more
// important. A worker gets what its batch holds and a little more, so that an ended sequence is
// replaced at once; the rest waits here, where it can be reordered, refused and counted. When it is
// full of lower classes, the youngest of the lowest is recalled: it is dispatched again later, and
// goes on from its tokens so far. A request that waiting has lifted is never recalled by the class
// it has reached. Pure logic; confined to the supervisor's loop thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace tandem {

class DispatchGate {
 public:
  enum class Verdict : uint8_t { kDispatch, kWait, kRecall };
  struct Decision {
    Verdict verdict = Verdict::kWait;
    uint64_t recall = 0;  // with kRecall: ask again after it
  };

  // Sequences at the worker; one request alone may have more.
  void set_limit(size_t n_sequences) { limit_ = n_sequences; }
  // Whether a request that asked for `priority` (0 is the highest) may go.
  Decision ask(int priority, size_t n_sequences) const;
  // `reached`: its class after ageing.
  void on_dispatch(uint64_t id, int reached, size_t n_sequences);
  void on_choice_end(uint64_t id, size_t n = 1);
  void on_leave(uint64_t id);  // ended, recalled, its worker died; unknown ids are ignored
  size_t n_sequences() const { return n_sequences_; }
  size_t n_requests() const { return at_worker_.size(); }

 private:
  struct Entry {
    int reached = 0;
    size_t n_sequences = 0;
    uint64_t turn = 0;
  };
  size_t limit_ = 1, n_sequences_ = 0;
  uint64_t next_turn_ = 1;
  std::unordered_map<uint64_t, Entry> at_worker_;
};

}  // namespace tandem
