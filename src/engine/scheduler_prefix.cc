// What the prefix cache does for a sequence: pages to start behind, and its own full ones made
// findable.
#include <algorithm>

#include "engine/scheduler.h"

namespace tandem {

PrefixCache::Hit Scheduler::find_cached(const Sequence& s) {
  const RequestState& r = *s.request;
  if (r.request.prompt_logprobs) return {};
  int n_prompt = static_cast<int>(r.request.prompt.size());
  // Forks start where the prompt ends, and its end is reported once: both need a chunk that ends
  // there.
  // One that has tokens already was reported by an earlier worker.
  bool is_prompt_over = r.forking.empty() && !r.request.hands_off &&
                        (r.n_prompt_reported == n_prompt || !s.generated.empty());
  // A prompt that is lent can be found whole: its logits are not needed.
  int n_tokens = is_prompt_over ? s.n_tokens() - 1 : r.request.loan ? n_prompt : n_prompt - 1;
  if (!options_.has_prefix_cache) return sibling_hit(s, std::min(n_tokens, n_prompt));
  return cache_.find(s.tokens(wanted_), n_tokens, r.request.place);
}

// Without the cache: the full pages of the prompt, from another choice that runs, so that a choice that lost its
// pages shares them again.
PrefixCache::Hit Scheduler::sibling_hit(const Sequence& s, int n_tokens) const {
  int n_blocks = n_tokens / options_.page_size;
  for (const auto& other : s.request->sequences) {
    if (other.get() == &s || other->state != Sequence::State::kRunning) continue;
    if (other->n_computed < n_blocks * options_.page_size) continue;
    if (!s.weights.agrees_with(other->weights, n_blocks * options_.page_size, wanted_)) continue;
    PrefixCache::Hit hit;
    bool is_whole = n_blocks > 0;
    for (int g = 0; g < pool_.n_groups(); ++g) {
      std::vector<PageId>& pages = hit.pages.emplace_back(n_blocks, -1);
      int first = first_visible_page(options_.windows[g], options_.page_size, n_blocks * options_.page_size);
      for (int i = first; i < n_blocks; ++i) {
        pages[i] = other->pages.pages(g)[i];
        is_whole = is_whole && pages[i] >= 0;
      }
    }
    hit.chain.n_blocks = n_blocks;
    if (is_whole) return hit;
  }
  return {};
}

void Scheduler::start_behind(Sequence* s, const PrefixCache::Hit& hit) {
  if (hit.chain.n_blocks > 0) s->pages.adopt(hit.pages);
  s->published = hit.chain;
  s->published.place = s->request->request.place;  // also where nothing was looked for
  s->n_computed = hit.chain.n_blocks * options_.page_size;
  s->weights.record(s->n_computed, wanted_);
  RequestState* r = s->request;
  // Once it has computed something, pages found again after a preemption are no gain of this
  // request.
  if (!r->has_computed)
    r->n_cached = r->n_prompt_reported = std::min(s->n_computed, static_cast<int>(r->request.prompt.size()));
}

int Scheduler::pin(std::span<const int32_t> tokens) {
  const PrefixCache::Hit hit = cache_.find({tokens, {}}, static_cast<int>(tokens.size()));
  if (hit.chain.n_blocks == 0) return 0;
  pinned_.push_back(std::make_unique<PageTable>(&pool_, &options_.windows, options_.page_size));
  pinned_.back()->adopt(hit.pages);
  SchedulerOptions rest = options_;
  pinned_pages_.resize(hit.pages.size());
  for (size_t g = 0; g < hit.pages.size(); ++g) {
    for (const PageId page : hit.pages[g]) {
      if (page >= 0) pinned_pages_[g].insert(page);
    }
    rest.n_pages[g] -= static_cast<int>(pinned_pages_[g].size());
  }
  limit_ = std::min(options_.context_tokens, pool_limit(rest));
  return hit.chain.n_blocks * options_.page_size;
}

// Pages of the hit that somebody holds. Those of a window count for nothing: the sequence soon
// needs others.
int Scheduler::pages_held(const PrefixCache::Hit& hit, int group) const {
  if (hit.chain.n_blocks == 0 || options_.windows[group] != 0) return 0;
  return static_cast<int>(
      std::count_if(hit.pages[group].begin(), hit.pages[group].end(),
                    [&](PageId page) { return pool_.n_holders(group, page) > 0; }));
}

// Its pages that are full now become findable, before some leave the window.
void Scheduler::publish(Sequence* s) {
  if (options_.has_prefix_cache)
    cache_.publish(s->tokens(wanted_), s->n_computed, &s->pages, &s->published);
}

}  // namespace tandem
