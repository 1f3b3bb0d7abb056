// Prompts computed here for others, and prompts computed elsewhere. See the note in scheduler.h.
#include <algorithm>

#include "base/check.h"
#include "engine/scheduler.h"

namespace tandem {
namespace {
constexpr size_t kMaxArrivals = 4096;  // far above what a supervisor has under way
}

// --- lending ---

EngineLoan Scheduler::make_loan(const RequestState& r, const PageTable& pages, const WeightSpans& weights, int first_block,
                                int n_blocks) const {
  EngineLoan loan;
  loan.id = r.request.id;
  loan.first_block = static_cast<uint32_t>(first_block);
  loan.weight_borders = weights.borders();
  for (int g = 0; g < pool_.n_groups(); ++g) {
    std::vector<RemotePage>& lent = loan.groups.emplace_back();
    for (int i = first_block; i < n_blocks; ++i) {
      PageId page = pages.pages(g)[i];
      uint32_t serial = page >= 0 && options_.ledger != nullptr ? options_.ledger->serial(g, page) : 0;
      lent.push_back({page, serial});
    }
  }
  return loan;
}

// Blocks that became full, before some leave the window. The last chunk's are lent with the whole.
void Scheduler::lend_blocks(Sequence* s, EngineEvents* events) {
  RequestState* r = s->request;
  int n_full = s->n_computed / options_.page_size;
  if (s->n_computed >= static_cast<int>(r->request.prompt.size()) || n_full <= r->n_lent_blocks) return;
  EngineLoan loan = make_loan(*r, s->pages, s->weights, r->n_lent_blocks, n_full);
  loan.n_tokens = static_cast<uint32_t>(n_full * options_.page_size);
  r->n_lent_blocks = n_full;
  events->loans.push_back(std::move(loan));
}

// The prompt is computed and the first tokens are drawn: what is left is the loan.
void Scheduler::hand_off(RequestState* r, EngineEvents* events) {
  EngineLoan loan = make_loan(*r, *r->lent, r->prompt_weights, 0, r->lent->n_entries(0));
  loan.n_tokens = static_cast<uint32_t>(r->request.prompt.size());
  loan.is_whole = true;
  events->loans.push_back(std::move(loan));
  for (const auto& s : r->sequences) {
    if (s->state == Sequence::State::kEnded) continue;
    std::erase(running_, s.get());
    std::erase(waiting_, s.get());
    s->state = Sequence::State::kEnded;
  }
  for (int g = 0; g < pool_.n_groups(); ++g) n_pages_lent_ += r->lent->n_held(g);
  auto node = requests_.extract(r->request.id);
  loans_[r->request.id] = std::move(node.mapped());
}

void Scheduler::release(uint64_t id) {
  auto it = loans_.find(id);
  if (it == loans_.end()) return;
  for (int g = 0; g < pool_.n_groups(); ++g) n_pages_lent_ -= it->second->lent->n_held(g);
  loans_.erase(it);
}

// --- borrowing ---

std::string Scheduler::loan_fault(const EngineRequest& r) const {
  const EngineLoan& loan = *r.loan;
  int n_prompt = static_cast<int>(r.prompt.size());
  size_t n_blocks = static_cast<size_t>((n_prompt + options_.page_size - 1) / options_.page_size);
  if (!loan.is_whole || loan.first_block != 0 || loan.n_tokens != r.prompt.size())
    return "a loan of tokens " + std::to_string(loan.first_block) + " blocks to " + std::to_string(loan.n_tokens) +
           " for a prompt of " + std::to_string(n_prompt) + " tokens";
  if (loan.groups.size() != options_.windows.size())
    return "a loan of " + std::to_string(loan.groups.size()) + " KV groups, the model has " +
           std::to_string(options_.windows.size());
  for (size_t g = 0; g < loan.groups.size(); ++g) {
    if (loan.groups[g].size() != n_blocks)
      return "a loan of " + std::to_string(loan.groups[g].size()) + " blocks of group " + std::to_string(g) + ", needed " +
             std::to_string(n_blocks);
    for (size_t i = static_cast<size_t>(first_visible_page(options_.windows[g], options_.page_size, n_prompt)); i < n_blocks; ++i) {
      if (loan.groups[g][i].page < 0)
        return "a loan without block " + std::to_string(i) + " of group " + std::to_string(g);
    }
  }
  return "";
}

// The blocks that the cache has not come from the loan, in the step that admits the sequence. False: no pages, or it
// lost them after it had imported them, when the loan may be over.
bool Scheduler::import(Sequence* s, int64_t now_us) {
  RequestState* r = s->request;
  const EngineLoan& loan = *r->request.loan;
  int n_prompt = static_cast<int>(r->request.prompt.size());
  if (s->n_computed < n_prompt) {
    if (s->is_imported) return false;
    int first = s->n_computed / options_.page_size;
    if (!s->pages.grow_visible(n_prompt)) return false;
    for (int g = 0; g < pool_.n_groups(); ++g) {
      for (int i = first; i < s->pages.n_entries(g); ++i) {
        PageId to = s->pages.pages(g)[i];
        if (to < 0) continue;
        plan_.copies.push_back({g, -1 - static_cast<PageId>(plan_.imports.size()), to});
        plan_.imports.push_back({r->request.id, loan.source, loan.generation, loan.groups[g][i]});
      }
    }
    s->n_computed = n_prompt;
  }
  s->is_imported = true;
  if (r->leader == s && !r->forking.empty()) {
    fork_waiting_choices(r, now_us, &plan_.copies);
  }
  note_imports(r);
  return true;
}

// The loan can be released once nobody will copy from it any more.
void Scheduler::note_imports(RequestState* r) {
  if (!r->request.loan || r->has_told_import || r->n_unfinished == 0) return;
  for (const auto& s : r->sequences) {
    if (s->state != Sequence::State::kEnded && !s->is_imported) return;
  }
  r->has_told_import = true;
  imported_.push_back(r->request.id);
}

void Scheduler::hand_back(uint64_t id, bool is_preempted, std::string reason) {
  auto it = requests_.find(id);
  if (it == requests_.end() || it->second->n_unfinished == 0) return;
  std::erase(imported_, id);
  it->second->has_told_import = true;
  for (const auto& s : it->second->sequences) {
    if (s->state != Sequence::State::kEnded) retire(s.get());
  }
  if (is_preempted) ++counters_.preemptions;
  returns_.push_back({id, is_preempted, std::move(reason)});
}

void Scheduler::take_loan_news(EngineEvents* events) {
  events->imported.insert(events->imported.end(), imported_.begin(), imported_.end());
  std::move(returns_.begin(), returns_.end(), std::back_inserter(events->returns));
  imported_.clear(), returns_.clear();
}

// Beyond what running sequences were promised.
bool Scheduler::has_spare_page(int group) const {
  int n = pool_.n_free(group);
  for (const Sequence* s : running_) n -= pages_promised(*s, group);
  return n > 0;
}

void Scheduler::arrive(const EngineLoan& loan, std::span<const int32_t> tokens, PageSource* source) {
  if (!options_.has_prefix_cache || loan.is_whole || loan.groups.size() != options_.windows.size()) return;
  if (arrivals_.size() >= kMaxArrivals || requests_.contains(loan.id)) return;
  PrefixCache::Chain& chain = arrivals_[loan.id];
  size_t page_size = static_cast<size_t>(options_.page_size), n_blocks = tokens.size() / page_size;
  bool is_next = loan.first_block == static_cast<uint32_t>(chain.n_blocks);
  for (const auto& pages : loan.groups) is_next = is_next && pages.size() == n_blocks;
  const WeightSpans weights(options_.has_lean_set ? loan.weight_borders : std::vector<uint32_t>(),
                            static_cast<int>(loan.n_tokens));
  for (size_t i = 0; i < n_blocks && is_next; ++i) {
    int first_pos = (static_cast<int>(loan.first_block) + static_cast<int>(i)) * options_.page_size;
    WeightSet set = weights.at(first_pos, WeightSet::kFull);
    if (weights.run(first_pos, set) < options_.page_size) return;  // of two sets: not to be found again
    std::span<const int32_t> block = tokens.subspan(i * page_size, page_size);
    if (cache_.follow(&chain, block, set)) continue;
    std::vector<PageId> pages(loan.groups.size(), -1);
    for (int g = 0; g < pool_.n_groups() && is_next; ++g) {
      RemotePage remote = loan.groups[g][i];
      is_next = remote.page >= 0 && has_spare_page(g) && (pages[g] = pool_.allocate(g)) >= 0 &&
                source->copy(loan.source, loan.generation, g, remote, pages[g]).ok();
    }
    is_next = is_next && cache_.add_block(&chain, block, pages, set);
    for (int g = 0; g < pool_.n_groups(); ++g) {
      if (pages[g] >= 0) pool_.release(g, pages[g]);
    }
  }
}

}  // namespace tandem
