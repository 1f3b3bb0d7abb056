// Pace and company: how long a step may take beside running streams, how many may run, and who may
// join when batching is not continuous.
#include <algorithm>
#include <climits>
#include <utility>

#include "engine/scheduler.h"

namespace tandem {
namespace {

// A step with a chunk may take so many times as long as the decodes in it alone, where the target
// is less: else prompts would stand still on a machine that cannot hold the target anyway.
constexpr double kLeastStretch = 2.5;
constexpr double kLeastStretchBelow = 1.5;  // beside a stream that is more important than the prompt
constexpr double kLeastStretchAbove = 4;    // beside less important ones only
constexpr int kLeastChunk = 8;   // a prompt always goes on
constexpr int kChunkUnit = 4;
constexpr double kHighUsage = 0.80, kLowUsage = 0.70;  // of the device's pages
constexpr int64_t kGrowUs = 1'000'000;

}  // namespace

void Scheduler::add_to_shape(int first_pos, int n_tokens, bool is_decode,
                             const SchedulerOptions& options, StepShape* shape) {
  int64_t keys = first_pos + (n_tokens + 1) / 2;
  // Groups with a window see less; their share of the layers is not known here, so they count
  // alike.
  int64_t reads = 0;
  for (int window : options.windows)
    reads += (window == 0 ? keys : std::min<int64_t>(keys, window)) * n_tokens;
  reads /= std::max<int64_t>(1, static_cast<int64_t>(options.windows.size()));
  (is_decode ? shape->n_decode : shape->n_prefill) += n_tokens;
  (is_decode ? shape->decode_reads : shape->prefill_reads) += reads;
}

// Until steps of a set were seen, those of the other one tell more than nothing: its first step must not be a whole chunk.
const StepCost& Scheduler::cost_of(WeightSet set) const {
  const StepCost& own = step_cost_[static_cast<size_t>(set)];
  const StepCost& other = step_cost_[set == WeightSet::kFull ? 1 : 0];
  return own.is_known() || !other.is_known() ? own : other;
}

// Of those for whom the step decodes the most important one counts.
double Scheduler::least_stretch(const Sequence& s) const {
  int highest = INT_MAX;
  for (const Sequence* r : running_)
    if (r->planned_tokens > 0 && r->is_decoding()) highest = std::min(highest, r->priority_class);
  return highest < s.priority_class ? kLeastStretchBelow : highest > s.priority_class ? kLeastStretchAbove : kLeastStretch;
}

// As much of n tokens of the prompt of `s` as keeps the step in time; 0: nothing more.
int Scheduler::timely_chunk(const Sequence& s, int n_tokens) const {
  const StepCost& cost = cost_of(plan_.batch.weights);
  if (options_.target_gap_us == 0 || plan_.shape.n_decode == 0 || !cost.is_known()) return n_tokens;
  StepShape decodes = plan_.shape;
  decodes.n_prefill = 0, decodes.prefill_reads = 0;
  double most_us = std::max(static_cast<double>(options_.target_gap_us) / cost.lateness(),
                            least_stretch(s) * cost.predict_us(decodes));
  auto is_in_time = [&](int n) {
    StepShape shape = plan_.shape;
    add_to_shape(s.n_computed, n, false, options_, &shape);
    return cost.predict_us(shape) <= most_us;
  };
  // Larger chunks beside decodes than any so far are reached by doubling: what is not measured is not believed.
  int most = std::max(kLeastChunk, 2 * cost.largest_mixed()) - plan_.shape.n_prefill;
  int high = std::min(n_tokens, std::max(most, 0));
  if (is_in_time(high)) return high;
  int low = 0;  // in time, or the least
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    (is_in_time(middle) ? low : high) = middle;
  }
  low -= low % kChunkUnit;
  bool is_first = plan_.shape.n_prefill == 0;
  return is_first ? std::min(n_tokens, std::max(low, kLeastChunk)) : low;
}

// Share of the device's pages that are used, in the group where it is largest.
double Scheduler::pool_usage() const {
  double usage = 0;
  for (int g = 0; g < pool_.n_groups(); ++g)
    usage = std::max(usage, 1.0 - static_cast<double>(pool_.n_free(g)) / std::max(1, pool_.n_pages(g)));
  return usage;
}

// Above kHighUsage the limit is one less than what runs, which closes admission and preempts nobody;
// as sequences end, it follows them down. Where pages ran out all the same, it falls to what is left.
// Below kLowUsage it rises again.
void Scheduler::adapt_batch_limit(int64_t now_us) {
  if (!options_.adapts_batch_limit) return;
  double usage = pool_usage();
  bool has_overflowed = std::exchange(has_overflowed_, false);
  if (usage > kHighUsage || has_overflowed) {
    limit_changed_us_ = now_us;
    int most = has_overflowed && usage <= kHighUsage ? n_running() : n_running() - 1;
    if (batch_limit_ > most) batch_limit_ = std::max(1, most);
  } else if (usage < kLowUsage && batch_limit_ < options_.max_batch_size &&
             now_us - limit_changed_us_ >= kGrowUs) {
    batch_limit_ = std::min(options_.max_batch_size, batch_limit_ + std::max(1, batch_limit_ / 4));
    limit_changed_us_ = now_us;
  }
}

// Begins a batch when the last one is over: its members are numbered, and nobody else joins.
void Scheduler::form_batch(int64_t now_us) {
  if (options_.batching == Batching::kContinuous || !running_.empty()) return;
  bool is_over = std::none_of(waiting_.begin(), waiting_.end(),
                              [&](const Sequence* s) { return s->batch == batch_ && batch_ > 0; });
  if (!is_over) return;
  lanes_.clear();
  if (waiting_.empty()) return;
  int n_waiting = 0;
  int64_t first_us = now_us;
  bool waits_to_fill = options_.batching != Batching::kDynamic;
  for (const Sequence* s : waiting_) {
    n_waiting += places(*s);
    first_us = std::min(first_us, s->waiting_since_us);
    if (!s->request->request.waits_for_company) waits_to_fill = false;
  }
  if (waits_to_fill && n_waiting < options_.max_batch_size && now_us - first_us < options_.form_us) return;
  ++batch_;
  int n_taken = 0;
  for (Sequence* s : waiting_) {  // most important first
    if (n_taken > 0 && n_taken + places(*s) > options_.max_batch_size) break;
    s->batch = batch_;
    n_taken += places(*s);
  }
}

bool Scheduler::may_join(const Sequence& s) const {
  return options_.batching == Batching::kContinuous || (batch_ > 0 && s.batch == batch_);
}

// An ended sequence whose lane is computed on, if there is a page for one more position.
void Scheduler::keep_lane(Sequence* s) {
  if (options_.batching != Batching::kStaticPadded || s->request->request.hands_off || !s->pages.grow(s->n_computed + 1)) return;
  Lane lane{std::make_unique<PageTable>(&pool_, &options_.windows, options_.page_size), s->n_computed - 1,
            s->token_at(std::min(s->n_computed, s->n_tokens() - 1))};
  lane.pages->take(&s->pages);
  lanes_.push_back(std::move(lane));
}

// Each lane goes on behind its end, as a batch does that does not look at its members; at the end of the context, and
// where the pool becomes full, it computes its last position again and again: it must not press on those that run.
void Scheduler::add_lanes() {
  for (Lane& lane : lanes_) {
    bool has_page = lane.pos + 2 <= lane.pages->n_entries(0) * options_.page_size;
    if (lane.pos + 1 < limit_ && (has_page || pool_usage() < kLowUsage) && lane.pages->grow(lane.pos + 2)) ++lane.pos;
    StepItem item;
    item.first_pos = lane.pos;
    item.first_token = static_cast<int>(plan_.batch.tokens.size());
    item.n_tokens = 1;
    item.is_decode = true;
    for (int g = 0; g < pool_.n_groups(); ++g) item.page_tables.push_back(lane.pages->pages(g));
    plan_.batch.logit_rows.push_back(item.first_token);
    plan_.batch.tokens.push_back(lane.token);
    plan_.batch.items.push_back(std::move(item));
    ++plan_.n_decode_tokens;
    add_to_shape(lane.pos, 1, true, options_, &plan_.shape);
  }
}

}  // namespace tandem
