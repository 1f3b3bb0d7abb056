// Deciding: which sequences run, how many tokens of each, who gives up pages. See the note in scheduler.h.
#include "engine/scheduler.h"

#include <algorithm>
#include <climits>
#include <tuple>

#include "base/check.h"
#include "base/log.h"

namespace tandem {
namespace {

// Rows of logits kept for prompt log-probabilities per step: 64 rows of the largest vocabulary served
// (262144) are 64 MiB.
constexpr int kMaxPromptLogprobRows = 64;

bool is_more_important(const Sequence* a, const Sequence* b) {
  return std::tuple(a->priority_class, a->request->arrival, a->choice) <
         std::tuple(b->priority_class, b->request->arrival, b->choice);
}

int n_prompt(const Sequence& s) { return static_cast<int>(s.request->request.prompt.size()); }

}  // namespace

int pool_limit(const SchedulerOptions& o) {
  int64_t limit = INT32_MAX;
  for (size_t g = 0; g < o.n_pages.size(); ++g) {
    int n_pages = o.n_pages[g] + (o.n_swap_pages.empty() || !o.attends_to_swapped ? 0 : o.n_swap_pages[g]);
    int64_t all = int64_t{n_pages} * o.page_size;
    bool grows = peak_pages(o.windows[g], o.page_size, INT32_MAX - o.page_size, o.prefill_chunk_tokens) > n_pages;
    if (grows) limit = std::min(limit, all);
  }
  return static_cast<int>(limit);
}

void StepPlan::clear() {
  batch.clear();
  samples.clear(), items.clear(), draws.clear(), copies.clear(), imports.clear();
  shape = {};
  n_decode_tokens = n_prefill_tokens = 0;
}

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)), pool_(options_.n_pages, options_.n_swap_pages),
      cache_(&pool_, &options_.windows, options_.page_size, 64, options_.ledger, options_.lean_id) {
  CHECK(options_.windows.size() == options_.n_pages.size());
  CHECK(options_.max_batch_size > 0 && options_.prefill_chunk_tokens > 0 && options_.ageing_us > 0);
  limit_ = std::min(options_.context_tokens, pool_limit(options_));
  batch_limit_ = options_.max_batch_size;
  pool_.set_idle_limit(options_.max_cached_pages);
  for (int n : options_.n_pages) seen_.emplace_back(n, 0);
  if (options_.ledger != nullptr) {
    if (options_.has_prefix_cache) counters_.pages_readopted = static_cast<uint64_t>(cache_.restore());
    pool_.set_ledger(options_.ledger);
  }
}

Scheduler::~Scheduler() = default;

int Scheduler::n_waiting() const {
  size_t n = waiting_.size();
  for (const auto& [id, request] : requests_) n += request->forking.size();
  return static_cast<int>(n);
}

const StepPlan& Scheduler::schedule(int64_t now_us) {
  ++step_;
  step_start_us_ = now_us;
  plan_.clear();
  rank(now_us);
  adapt_batch_limit(now_us);
  WeightSet set = pick_set();
  plan_with(set, now_us);
  if (!has_plan()) {
    // Whoever runs may need the other one, or have been admitted just now.
    WeightSet other = set == WeightSet::kFull ? WeightSet::kLean : WeightSet::kFull;
    bool has_other = std::any_of(running_.begin(), running_.end(), [&](const Sequence* s) { return next_set(*s) == other; });
    if (has_other) plan_with(other, now_us);
  }
  build_plan();
  if (!plan_.items.empty()) last_set_ = plan_.batch.weights;
  return plan_;
}

// What whoever runs needs next; of two sets that which did not have the last step.
WeightSet Scheduler::pick_set() const {
  bool is_needed[2] = {false, false};
  for (const Sequence* s : running_) is_needed[static_cast<size_t>(next_set(*s))] = true;
  if (running_.empty() && !waiting_.empty()) return next_set(*waiting_.front());
  if (is_needed[0] != is_needed[1]) return is_needed[0] ? WeightSet::kFull : WeightSet::kLean;
  if (!is_needed[0]) return wanted_;
  return last_set_ == WeightSet::kFull ? WeightSet::kLean : WeightSet::kFull;
}

bool Scheduler::has_plan() const {
  return std::any_of(running_.begin(), running_.end(), [](const Sequence* s) { return s->planned_tokens > 0; });
}

void Scheduler::plan_with(WeightSet set, int64_t now_us) {
  plan_.batch.weights = set;
  plan_.shape = {};
  plan_decodes(now_us);
  plan_prompts(now_us);
}

void Scheduler::rank(int64_t now_us) {
  for (std::vector<Sequence*>* list : {&running_, &waiting_}) {
    for (Sequence* s : *list) {
      int64_t waited = s->waited_us;
      if (s->state == Sequence::State::kWaiting) waited += now_us - s->waiting_since_us;
      s->priority_class = static_cast<int>(
          std::max<int64_t>(0, s->request->request.priority - waited / options_.ageing_us));
      s->planned_tokens = 0;
    }
    if (!std::is_sorted(list->begin(), list->end(), is_more_important))
      std::sort(list->begin(), list->end(), is_more_important);
  }
}

void Scheduler::plan_decodes(int64_t now_us) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* s = running_[i];
    if (!s->is_decoding() || !is_turn_of(*s)) continue;
    while (s->state == Sequence::State::kRunning && !grow(s, s->n_computed + 1)) {
      has_overflowed_ = true;
      preempt_last(now_us);
    }
    if (s->state == Sequence::State::kRunning) s->planned_tokens = 1;
  }
}

void Scheduler::plan_prompts(int64_t now_us) {
  form_batch(now_us);
  for (Sequence* s : running_) {
    if (s->planned_tokens > 0) add_to_shape(s->n_computed, 1, true, options_, &plan_.shape);
  }
  candidates_.clear();
  for (Sequence* s : running_) {
    if (!s->is_decoding()) candidates_.push_back(s);
  }
  if (candidates_.empty() && waiting_.empty()) return;
  candidates_.insert(candidates_.end(), waiting_.begin(), waiting_.end());
  std::sort(candidates_.begin(), candidates_.end(), is_more_important);

  int budget = options_.prefill_chunk_tokens;
  // The highest class asked for by those who found no room: who asked for no more stays behind them.
  int closed_from = INT_MAX;
  for (Sequence* s : candidates_) {
    if (budget == 0) break;
    if (s->state == Sequence::State::kEnded) continue;  // handed back meanwhile
    if (s->state == Sequence::State::kWaiting) {
      const int asked = s->request->request.priority;
      if (!may_join(*s) || asked >= closed_from) continue;
      // A victim of this step closes admission too: whoever comes after it is less important still.
      if (s->preempted_in_step == step_ || !try_admit(s, closed_from < INT_MAX, now_us)) {
        closed_from = asked;
        continue;
      }
    }
    if (s->state != Sequence::State::kRunning) continue;  // admitted, and handed back for want of pages
    if (!is_turn_of(*s)) continue;
    // Swapped in, it may have nothing to compute but its next token.
    bool is_decode = s->is_decoding();
    int n = is_decode ? 1 : timely_chunk(*s, chunk_for(*s, budget));
    if (n == 0) break;  // the step's time is used up
    if (!grow_for_chunk(s, &n, now_us)) continue;
    s->planned_tokens = n;
    add_to_shape(s->n_computed, n, is_decode, options_, &plan_.shape);
    if (!is_decode) budget -= n;
  }
}

int Scheduler::chunk_for(const Sequence& s, int budget) const {
  int n = std::min({budget, s.n_wanted() - s.n_computed, s.weights.run(s.n_computed, wanted_)});
  if (s.n_computed >= n_prompt(s)) return n;
  const RequestState& r = *s.request;
  // Forks share what the leader holds at the end of the prompt, so its chunk ends there.
  if (!r.forking.empty()) n = std::min(n, n_prompt(s) - s.n_computed);
  if (r.request.prompt_logprobs && r.n_prompt_logprobs < n_prompt(s) - 1) {
    // Known positions need no rows.
    n = std::min(n, std::max(r.n_prompt_logprobs - s.n_computed, 0) + kMaxPromptLogprobRows);
  }
  return n;
}

// Pages for the chunk: from less important sequences if need be, else a smaller chunk. False: none this step.
bool Scheduler::grow_for_chunk(Sequence* s, int* n_tokens, int64_t now_us) {
  while (!grow(s, s->n_computed + *n_tokens)) {
    if (running_.back() != s) {
      preempt_last(now_us);
      if (s->state != Sequence::State::kRunning) return false;  // went with the other choices of its request
    } else if (*n_tokens /= 2; *n_tokens == 0) {
      return false;
    }
  }
  return true;
}

// Admits `s` if there is a place and pages for it, or if preempting sequences of a class below the one it asked for makes
// them. `passes_others`: free room is theirs, only what it takes from victims is its own.
bool Scheduler::try_admit(Sequence* s, bool passes_others, int64_t now_us) {
  PrefixCache::Hit hit;
  if (!s->is_swapped()) hit = find_cached(*s);
  size_t n_kept = running_.size();
  while (!fits(*s, hit, n_kept)) {
    if (!lanes_.empty()) {
      lanes_.pop_back();
      continue;
    }
    if (n_kept == 0 || running_[n_kept - 1]->priority_class <= s->request->request.priority) return false;
    --n_kept;
  }
  bool has_victims = running_.size() > n_kept;
  if (passes_others && !has_victims) return false;
  while (running_.size() > n_kept) preempt_last(now_us);
  if (s->state != Sequence::State::kWaiting) return false;  // went back with other choices of its request
  if (has_victims && !s->is_swapped()) hit = find_cached(*s);  // one of them may have held what was found
  if (!s->is_swapped() || !bring_back(s)) start_behind(s, hit);
  std::erase(waiting_, s);
  s->state = Sequence::State::kRunning;
  s->waited_us += now_us - s->waiting_since_us;
  running_.insert(std::upper_bound(running_.begin(), running_.end(), s, is_more_important), s);
  if (s->request->request.loan && !import(s, now_us)) hand_back(s->request->request.id, true, "its pages went to others");
  return true;
}

// Whether `s` finds a place and pages beside running_[0, n_kept), the others being preempted.
bool Scheduler::fits(const Sequence& s, const PrefixCache::Hit& hit, size_t n_kept) {
  int n_places = places(s);
  for (size_t i = 0; i < n_kept; ++i) n_places += places(*running_[i]);
  if (n_places > batch_limit_ && n_kept > 0) return false;
  int n_forks = n_kept == 0 ? 0 : places(s) - 1;  // alone it must fit, its forks need not
  for (int g = 0; g < pool_.n_groups(); ++g) {
    int available = pool_.n_free(g) + pages_freed(g, n_kept);
    for (size_t i = 0; i < n_kept; ++i) available -= pages_promised(*running_[i], g) + pages_expected(*running_[i], g);
    // Pages of the hit that somebody holds are not free, but need not be.
    if (n_kept == running_.size()) available += pages_held(hit, g);
    int n_needed = pages_needed(s, g, n_forks);
    // Copies of its swapped pages that somebody holds need no room. Alone it may exceed the device.
    bool shares = s.is_swapped() && n_kept == running_.size() && options_.windows[g] == 0;
    if (shares) n_needed -= s.pages.n_held(g) - s.pages.n_to_swap_in(g);
    if (n_kept == 0) n_needed = std::min(n_needed, pool_.n_pages(g));
    else n_needed += pages_expected(s, g);
    if (available < n_needed) return false;
  }
  return true;
}

// Pages of `group` that come free when running_[n_kept, ...) are preempted; shared ones only if all their
// holders are.
int Scheduler::pages_freed(int group, size_t n_kept) {
  int n_freed = 0;
  std::vector<int32_t>& seen = seen_[group];
  for (int pass = 0; pass < 2; ++pass) {  // count, then clean up
    for (size_t i = n_kept; i < running_.size(); ++i) {
      const PageTable& pages = running_[i]->pages;
      for (int e = 0; e < pages.n_entries(group); ++e) {
        PageId page = pages.pages(group)[e];
        if (page < 0 || pool_.is_swapped(group, page)) continue;
        if (pass == 1) {
          seen[page] = 0;
        } else if (++seen[page] == pool_.n_holders(group, page)) {
          ++n_freed;
        }
      }
    }
  }
  return n_freed;
}

int Scheduler::pages_needed(const Sequence& s, int group, int n_forks) const {
  int n_tokens = s.request->request.hands_off ? s.n_wanted() : std::min(s.n_tokens() + 1, limit_);
  return peak_pages(options_.windows[group], options_.page_size, n_tokens, options_.prefill_chunk_tokens) +
         n_forks;
}

// Free pages that a running sequence may still take: the rest of its prompt, or one for its next tokens.
int Scheduler::pages_promised(const Sequence& s, int group) const {
  if (s.is_decoding()) return 1;
  return std::max(0, pages_needed(s, group, places(s) - 1) - s.pages.n_held(group));
}

// Pages beyond those of the next token that it takes if its answer becomes as long as answers here usually are, its
// forks' too.
int Scheduler::pages_expected(const Sequence& s, int group) const {
  const EngineRequest& r = s.request->request;
  if (!options_.adapts_batch_limit || r.hands_off) return 0;
  const auto usual = static_cast<int>(std::min<double>(usual_answer_, r.max_tokens));
  const int n_more = usual - static_cast<int>(s.generated.size());
  if (n_more <= 1) return 0;
  const auto pages = [&](int n) {
    return peak_pages(options_.windows[group], options_.page_size, std::min(s.n_tokens() + n, limit_), options_.prefill_chunk_tokens);
  };
  return (pages(n_more) - pages(1)) * places(s);
}

// Places in the batch: a leader keeps those of its forks free.
int Scheduler::places(const Sequence& s) const {
  size_t n = 1 + (s.request->leader == &s ? s.request->forking.size() : 0);
  return static_cast<int>(std::min<size_t>(n, options_.max_batch_size));
}

void Scheduler::preempt_last(int64_t now_us) {
  Sequence* s = running_.back();
  if (s->n_computed > 0 && s->pages.swap_out(s->n_computed, &plan_.copies)) {
    ++counters_.swaps;
  } else if (s->request->request.loan) {
    return hand_back(s->request->request.id, true, "its pages went to others");
  } else {
    s->pages.clear();
    s->n_computed = 0;
    ++counters_.preemptions;
  }
  s->published = PrefixCache::Chain::start(s->request->request.place);
  s->planned_tokens = 0;
  s->preempted_in_step = step_;
  wait(s, now_us);
  log_debug("sequence preempted", {{"request", s->request->request.id},
                                   {"kind", s->n_computed > 0 ? "swap" : "recompute"},
                                   {"reason", "pages or places for more important ones"},
                                   {"pages_free", pool_.n_free()}});
}

void Scheduler::build_plan() {
  plan_.shape = {};
  for (bool decodes : {true, false}) {
    for (Sequence* s : running_) {
      if (s->planned_tokens > 0 && s->is_decoding() == decodes) add_item(s);
    }
    (decodes ? plan_.n_decode_tokens : plan_.n_prefill_tokens) =
        static_cast<int>(plan_.batch.tokens.size()) - (decodes ? 0 : plan_.n_decode_tokens);
  }
  if (!lanes_.empty()) add_lanes();
}

void Scheduler::add_item(Sequence* s) {
  StepItem item;
  item.first_pos = s->n_computed;
  item.first_token = static_cast<int>(plan_.batch.tokens.size());
  item.n_tokens = s->planned_tokens;
  item.is_decode = s->is_decoding();
  add_to_shape(item.first_pos, item.n_tokens, item.is_decode, options_, &plan_.shape);
  for (int g = 0; g < pool_.n_groups(); ++g) item.page_tables.push_back(s->pages.pages(g));
  for (int i = 0; i < item.n_tokens; ++i) plan_.batch.tokens.push_back(s->token_at(item.first_pos + i));
  int first_sample = static_cast<int>(plan_.samples.size());
  add_draws(s, item.first_pos, item.first_token);
  plan_.items.push_back({s, first_sample, static_cast<int>(plan_.samples.size()) - first_sample});
  plan_.batch.items.push_back(std::move(item));
}

void Scheduler::add_draws(Sequence* s, int first_pos, int first_token) {
  const RequestState& r = *s->request;
  auto add_row = [&](int pos) { plan_.batch.logit_rows.push_back(first_token + pos - first_pos); };
  auto add_draw = [&](Sequence* who, int prompt_position) {
    SampleRequest draw;
    draw.logit_row = static_cast<int>(plan_.batch.logit_rows.size()) - 1;
    draw.params = &r.request.sampling;
    draw.choice = who->choice;
    draw.position = static_cast<uint32_t>(prompt_position > 0 ? prompt_position : who->n_tokens());
    draw.prompt = r.request.prompt;
    draw.generated = who->generated;
    draw.end_tokens = r.request.end_tokens;
    draw.n_top_logprobs = r.request.n_top_logprobs;
    if (prompt_position > 0) draw.forced_token = r.request.prompt[prompt_position];
    plan_.samples.push_back(draw);
    plan_.draws.push_back({who, prompt_position});
  };

  int end_pos = first_pos + s->planned_tokens;
  if (r.request.prompt_logprobs) {
    int first = std::max(first_pos, r.n_prompt_logprobs);  // the row at pos gives the token at pos + 1
    for (int pos = first; pos < std::min(end_pos, n_prompt(*s) - 1); ++pos) add_row(pos), add_draw(s, pos + 1);
  }
  if (r.request.max_tokens == 0) return;
  bool has_row = false;
  auto draw_next = [&](Sequence* who) {
    if (!has_row) add_row(end_pos - 1);
    has_row = true;
    add_draw(who, 0);
  };
  if (end_pos == s->n_tokens()) draw_next(s);
  if (r.leader != s || end_pos != n_prompt(*s)) return;
  for (Sequence* fork : r.forking) {
    if (fork->generated.empty()) draw_next(fork);
  }
}

}  // namespace tandem
