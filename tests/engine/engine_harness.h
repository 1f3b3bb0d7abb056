// An engine over the fake backend, driven turn by turn, that checks every event against what each choice must
// get, and the page accounts after every turn.
#pragma once

#include <map>
#include <set>

#include "base/clock.h"
#include "engine/engine.h"
#include "fake_backend.h"

namespace tandem {

class EngineHarness {
 public:
  struct Choice {
    std::vector<int32_t> tokens;     // generated so far, replayed ones included
    SequenceEnd end = SequenceEnd::kNone;
    bool is_silenced = false;
    WeightSpans weights;             // of its positions, as the events tell
    WeightSet last_weights = WeightSet::kFull;  // of the position that the end token was drawn from
    int64_t first_token_turn = -1, end_turn = -1;
  };
  struct Entry {
    EngineRequest request;
    std::map<uint32_t, Choice> choices;
    std::vector<float> prompt_logprobs;  // of positions 1..
    uint32_t n_prompt_done = 0, n_cached = 0;
    WeightSpans prompt_weights;
    int64_t submit_turn = 0;
    bool is_cancelled = false;
  };

  EngineHarness(FakeModel model, EngineOptions options);
  uint64_t submit(EngineRequest request);       // gives it an id
  void cancel(uint64_t id);
  void silence(uint64_t id, uint32_t choice);
  bool turn();
  void run_until_idle(int max_turns = 1'000'000);
  bool is_idle() const;
  Entry& entry(uint64_t id) { return entries.at(id); }
  // Compares the ended request with fake_text(), then forgets it.
  void check_and_forget(uint64_t id);
  void check_all_ended();

  FakeModel model;
  EngineOptions options;
  FakeClock clock;
  FakeBackend backend;
  std::unique_ptr<Engine> engine;
  std::map<uint64_t, Entry> entries;
  std::vector<uint64_t> ended;       // requests whose choices have all ended, not forgotten yet
  int64_t n_turns = 0;
  int64_t n_checked_tokens = 0, n_cached_tokens = 0;
  std::map<SequenceEnd, int64_t> n_ends;
  int64_t n_mixed = 0;               // choices checked of which both sets computed positions
  int limit = 0;                     // longest sequence
  int64_t n_pinned_pages = 0, n_pinned_twice = 0;  // in use while nothing runs, by pins; shared by two pins

 private:
  void take(const EngineEvents& events);
  void take_token(const EngineToken& token);
  void note_end(Entry& e, Choice& c, SequenceEnd end);
  int64_t n_pages_total_ = 0;
  uint64_t next_id_ = 1;
};

std::vector<int32_t> fake_prompt(int n_tokens, uint64_t seed);
EngineRequest fake_request(int n_prompt, uint32_t max_tokens, uint64_t seed = 1, int n_choices = 1,
                           int priority = 1);

}  // namespace tandem
