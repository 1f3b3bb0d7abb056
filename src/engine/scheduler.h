// Who runs in the next step. Integers and token ids only: no device, no clock of its own, no thread.
//
// DESIGN. Sequences are ordered by (class after ageing, arrival, choice). A step takes one token of every
// decoding sequence, then chunks of prompts in that order until the budget is used, so a long prompt delays its
// neighbours by one chunk at most; the chunk is cut so that the step, as StepCost predicts it, keeps the time that
// a stream may wait. A waiting sequence is admitted when there is a place in the batch and its
// whole prompt fits the free pages, less what was promised to those admitted before; the first one that does
// not fit closes admission for the step, so that small ones never pass a large one for ever. Where a decode
// finds no page, the last sequence of the order gives up its pages: to the swap tier, from where they come back
// when it is admitted again, or, where that is full, to be computed again later (the numbers are the same by the
// invariance rule; tokens are never drawn twice). A sequence that is alone and larger than the device moves its
// first pages to the swap tier and reads them there. A waiting sequence may also push out
// running ones of a class strictly below the one it asked for. Ageing lifts whoever waits and protects whoever has waited,
// so everybody runs in the end; it pushes nobody out, or under a queue longer than the ageing time each admission would throw
// away what another has computed. Behind one that finds no room, only those who asked for more go on, and only by pushing out.
// While more than kHighUsage of the pages are held, the batch limit shrinks, and grows again slowly below it; and whoever
// is admitted beside others finds room for what its answer and theirs are expected to become: running sequences grow into
// the rest instead of pushing each other out.
// Other ways of batching exist for comparison: `dynamic`, a batch of all who wait begins when the last has ended;
// `static`, it also waits until it is full or the first has waited form_us; with padding, its ended lanes are
// computed on until all have ended.
// A sequence ends by length at a bound that depends on the model and the pool alone, never on the load.
// Choices of one request: the first computes the prompt, the others fork its pages.
// With the prefix cache, whoever is admitted starts behind the full pages that the cache has for its tokens; the
// last token of a prompt is computed always, for its logits. Scoring needs all logits and gets no pages.
// Two sets of weights: new positions take the set that is wanted (set_weights), positions computed before the set they
// had. A step has one set: that which whoever runs needs next; where some need the one and some the other, steps
// alternate between the two, and a step that finds nothing to do with one tries the other. Pages, places and order
// know nothing of sets, so the most important sequence still loses its pages to nobody, moves on every second step at
// least, and ends; hence all end.
// Apart (scheduler_handoff.cc): a request that hands off computes its prompt and draws first tokens; its pages are
// lent until release(), outside of all queues. A request with a loan is admitted as any other, and instead of
// computing the prompt, copies what the cache has not. It cannot compute its prompt again: where others give up
// their pages, it goes back to whoever sent it.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/page_source.h"
#include "engine/sequence.h"
#include "engine/step_cost.h"
#include "model/model_config.h"

namespace tandem {

enum class Batching : uint8_t { kContinuous, kDynamic, kStatic, kStaticPadded };

struct SchedulerOptions {
  int max_batch_size = 32;
  int prefill_chunk_tokens = 256;        // at most; less beside running streams
  int64_t target_gap_us = 0;             // between two tokens of a stream; 0: chunks are not cut
  Batching batching = Batching::kContinuous;
  int64_t form_us = 50'000;              // static batching: wait for a full batch
  bool adapts_batch_limit = true;
  int max_cached_pages = INT32_MAX;      // per group, held by the prefix cache alone
  int page_size = 16;
  int context_tokens = 0;
  int64_t ageing_us = 5'000'000;
  bool has_prefix_cache = true;
  std::vector<int> windows;   // per KV group, 0: full attention
  std::vector<int> n_pages;   // per KV group, of the device
  std::vector<int> n_swap_pages;  // per KV group, of the swap tier, numbered behind them; empty: none
  bool attends_to_swapped = true; // else a sequence ends where the device is full
  PageLedger* ledger = nullptr;   // outlives the scheduler; its sealed pages are taken over
  uint64_t lean_id = 0;           // see EngineOptions
  bool has_lean_set = false;      // else all positions count as of the full set, wherever they were computed
};

// What one step does: the batch for the backend, the draws for the sampler, and whose they are.
struct StepPlan {
  StepBatch batch;
  std::vector<SampleRequest> samples;
  struct Item {
    Sequence* sequence;
    int first_sample, n_samples;
  };
  std::vector<Item> items;      // as batch.items
  struct Draw {
    Sequence* sequence;
    int prompt_position;        // > 0: log-probability of that token of the prompt; 0: the next token
  };
  std::vector<Draw> draws;      // as samples
  // To be carried out in order, before the forward, also when the plan has no items: pages change hands in the
  // order of the list. Between the tiers, forks of lent prompts, and, where `from` is -1 - i, imports[i].
  std::vector<PageCopy> copies;
  struct Import {
    uint64_t request = 0;   // whose loan it is
    uint32_t source = 0;
    uint64_t generation = 0;
    RemotePage page{};
  };
  std::vector<Import> imports;
  StepShape shape;              // what the step costs
  int n_decode_tokens = 0, n_prefill_tokens = 0;
  void clear();
};

struct SchedulerCounters {
  uint64_t prompt_tokens = 0;     // computed for the first time; recomputation does not count
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;       // computed again later
  uint64_t swaps = 0;             // preempted to the swap tier
  uint64_t pages_readopted = 0;   // sealed by an earlier life
  uint64_t computed_tokens = 0;   // of prompts and forced chunks, recomputation included
};

// Longest sequence that fits the pool alone, whatever its chunks.
int pool_limit(const SchedulerOptions& options);

// Confined to the engine thread.
class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options);
  ~Scheduler();

  // Takes a request over. What cannot run (empty, or longer than any sequence may get) ends at once.
  void add(EngineRequest request, int64_t now_us, EngineEvents* events);
  // New positions are computed with this set from the next schedule() on.
  void set_weights(WeightSet set) { wanted_ = set; }
  WeightSet weights() const { return wanted_; }
  // Ends one choice (or all, choice < 0) and frees its pages. Unknown ids are ignored: they have ended.
  void cancel(uint64_t id, int choice, bool silently, SequenceEnd reason, int64_t now_us, EngineEvents* events);
  void expire(int64_t now_us, EngineEvents* events);  // ends what is past its deadline

  // Decides the next step; no items: nothing to do. Valid until commit(), which must follow a forward and
  // sample of a plan with items. Pages change hands here, tokens do not. Batch items behind those of `items` are
  // ended lanes that static batching with padding computes on.
  const StepPlan& schedule(int64_t now_us);
  // Accounts the step. `results` as plan.samples. `copies` must be carried out before the next forward.
  void commit(std::span<const SampleResult> results, int64_t now_us, EngineEvents* events,
              std::vector<PageCopy>* copies);

  // What a loan lends ahead of its request is copied into the prefix cache while pages are to spare: a head start,
  // of which nothing depends.
  void arrive(const EngineLoan& loan, std::span<const int32_t> tokens, PageSource* source);
  void release(uint64_t id);  // pages lent are not needed any more; unknown ids are ignored
  // The request's loan was no good; its pages are free, it is told among the returns.
  void hand_back(uint64_t id, bool is_preempted, std::string reason);
  // What became of loans since the last call; after the plan's moves are carried out.
  void take_loan_news(EngineEvents* events);

  // As Engine::pin().
  int pin(std::span<const int32_t> tokens);

  bool is_idle() const { return requests_.empty(); }
  int n_running() const { return static_cast<int>(running_.size()); }
  int n_waiting() const;
  int max_tokens_per_sequence() const { return limit_; }
  int64_t n_pages_lent() const { return n_pages_lent_; }
  const PagePool& pool() const { return pool_; }
  const SchedulerCounters& counters() const { return counters_; }
  const StepCost& step_cost() const { return step_cost_[static_cast<size_t>(wanted_)]; }
  int batch_limit() const { return batch_limit_; }

 private:
  // scheduler.cc: deciding
  void rank(int64_t now_us);
  WeightSet pick_set() const;
  WeightSet next_set(const Sequence& s) const { return s.weights.at(s.n_computed, wanted_); }
  bool is_turn_of(const Sequence& s) const { return next_set(s) == plan_.batch.weights; }
  bool has_plan() const;
  void plan_with(WeightSet set, int64_t now_us);
  void plan_decodes(int64_t now_us);
  void plan_prompts(int64_t now_us);
  int chunk_for(const Sequence& s, int budget) const;
  bool grow_for_chunk(Sequence* s, int* n_tokens, int64_t now_us);
  bool try_admit(Sequence* s, bool passes_others, int64_t now_us);
  bool fits(const Sequence& s, const PrefixCache::Hit& hit, size_t n_kept);
  int pages_freed(int group, size_t n_kept);
  int pages_needed(const Sequence& s, int group, int n_forks) const;
  bool has_room_to_fork(const Sequence& s) const;
  int pages_promised(const Sequence& s, int group) const;
  int pages_expected(const Sequence& s, int group) const;
  int places(const Sequence& s) const;
  void preempt_last(int64_t now_us);
  void adapt_batch_limit(int64_t now_us);
  void build_plan();
  void add_item(Sequence* s);
  void add_draws(Sequence* s, int first_pos, int first_token);

  // scheduler_pace.cc: how long a step may take, and who may join the batch
  int timely_chunk(const Sequence& s, int n_tokens) const;
  const StepCost& cost_of(WeightSet set) const;
  double least_stretch(const Sequence& s) const;
  static void add_to_shape(int first_pos, int n_tokens, bool is_decode, const SchedulerOptions& options,
                           StepShape* shape);
  void form_batch(int64_t now_us);
  bool may_join(const Sequence& s) const;
  void keep_lane(Sequence* s);
  void add_lanes();
  double pool_usage() const;

  // scheduler_swap.cc: the swap tier
  bool grow(Sequence* s, int n_tokens);
  bool spill(Sequence* s, int n_tokens);
  bool drop_swapped();
  bool bring_back(Sequence* s);

  // scheduler_prefix.cc: the prefix cache
  PrefixCache::Hit sibling_hit(const Sequence& s, int n_tokens) const;
  PrefixCache::Hit find_cached(const Sequence& s);
  void start_behind(Sequence* s, const PrefixCache::Hit& hit);
  int pages_held(const PrefixCache::Hit& hit, int group) const;
  void publish(Sequence* s);

  // scheduler_handoff.cc: lending and borrowing
  void lend_blocks(Sequence* s, EngineEvents* events);
  EngineLoan make_loan(const RequestState& r, const PageTable& pages, const WeightSpans& weights, int first_block,
                       int n_blocks) const;
  void hand_off(RequestState* request, EngineEvents* events);
  std::string loan_fault(const EngineRequest& request) const;
  bool import(Sequence* s, int64_t now_us);
  void note_imports(RequestState* request);
  bool has_spare_page(int group) const;

  // scheduler_commit.cc: accounting
  void fork_waiting_choices(RequestState* request, int64_t now_us, std::vector<PageCopy>* copies);
  void report_prompt(const Sequence& s, std::span<const SampleResult> results, const StepPlan::Item& item,
                     EngineEvents* events);
  void take_token(Sequence* s, const SampleResult& result, EngineEvents* events);
  SequenceEnd length_end(const Sequence& s) const;
  void end(Sequence* s, SequenceEnd reason, std::string error, EngineEvents* events);
  void retire(Sequence* s);
  void pass_on_lead(RequestState* request, int64_t now_us);
  void wait(Sequence* s, int64_t now_us);
  void forget_finished();

  const SchedulerOptions options_;
  PagePool pool_;
  PrefixCache cache_;
  int limit_ = 0;  // prompt + generated tokens of any sequence
  uint64_t next_arrival_ = 0;
  uint64_t step_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  std::vector<Sequence*> running_;   // after rank(): most important first
  std::vector<Sequence*> waiting_;
  std::vector<Sequence*> candidates_;       // scratch of plan_prompts
  std::vector<std::vector<int32_t>> seen_;  // scratch of pages_freed: per group and page
  std::vector<uint64_t> finished_;
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> loans_;     // lent, until release()
  std::unordered_map<uint64_t, PrefixCache::Chain> arrivals_;             // of requests to come
  std::vector<RequestState*> handing_off_;                                // scratch of commit
  std::vector<uint64_t> imported_;
  std::vector<EngineReturn> returns_;
  int64_t n_pages_lent_ = 0;
  StepPlan plan_;
  SchedulerCounters counters_;
  StepCost step_cost_[2];            // by set
  WeightSet wanted_ = WeightSet::kFull, last_set_ = WeightSet::kFull;  // last_set_: of the last step with items
  int64_t step_start_us_ = 0;
  int batch_limit_ = 0;
  int64_t limit_changed_us_ = 0;
  double usual_answer_ = 256;        // tokens of an answer: a guess, then a moving mean of those that ended
  bool has_overflowed_ = false;      // a decode found no page since the last schedule()
  uint64_t batch_ = 0;               // number of the batch in progress, or of the last one
  struct Lane {                      // of a sequence that has ended
    std::unique_ptr<PageTable> pages;
    int pos;                         // computed last
    int32_t token;
  };
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<PageTable>> pinned_;
  std::vector<std::unordered_set<PageId>> pinned_pages_;  // per group, of all of them
};

}  // namespace tandem
