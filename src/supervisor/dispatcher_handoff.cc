// The handoff of a request from its prefill worker to its decode worker, and its way back into the queue.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "supervisor/dispatcher.h"

namespace tandem {

using api::api_error;

namespace {
// A loan that is no good has lost its owner or its pages meanwhile: rare, and gone at the next try. So often in
// a row it is a fault that trying does not cure.
constexpr int kMaxBadLoans = 5;

bool is_plausible(const ipc::Loan& loan, size_t n_prompt, size_t page_size) {
  size_t end = loan.n_tokens;
  if (end > n_prompt || loan.groups.empty()) return false;
  if (loan.is_whole ? (loan.first_block != 0 || end != n_prompt) : end % page_size != 0) return false;
  size_t n_blocks = (end + page_size - 1) / page_size;
  if (loan.first_block > n_blocks) return false;
  return std::all_of(loan.groups.begin(), loan.groups.end(),
                     [&](const auto& pages) { return pages.size() == n_blocks - loan.first_block; });
}

}  // namespace

void Dispatcher::on_lent(int number, ipc::Lent message) {
  Lane& lane = lanes_[number];
  Request* r = find_by_wire(message.id);
  if (r == nullptr || r->prefiller != number) {  // ended meanwhile: the lender may not have heard of it yet
    if (message.loan.is_whole) (void)lane.link->send(ipc::Release{message.id});
    return;
  }
  if (r->is_handed_over || !is_plausible(message.loan, r->in.prompt.size(),
                                         static_cast<size_t>(config_.cache_page_size_tokens)))
    return lane.link->protocol_fault("a loan of " + std::to_string(message.loan.n_tokens) + " tokens from block " +
                                     std::to_string(message.loan.first_block) + " for a prompt of " +
                                     std::to_string(r->in.prompt.size()) + " tokens");
  lane.link->note_progress();
  message.loan.source = lane.source;
  if (message.loan.is_whole) hand_over(r, std::move(message.loan));
  else lend_chunk(r, std::move(message.loan));
}

// A head start: what of it is lost is copied with the whole loan.
void Dispatcher::lend_chunk(Request* r, ipc::Loan loan) {
  auto page_size = static_cast<uint32_t>(config_.cache_page_size_tokens);
  auto begin = r->in.prompt.begin();
  ipc::Lend lend;
  lend.id = r->wire_id;
  lend.tokens.assign(begin + loan.first_block * page_size, begin + loan.n_tokens);
  lend.loan = std::move(loan);
  (void)lanes_[r->decoder].link->send(lend);
}

void Dispatcher::hand_over(Request* r, ipc::Loan loan) {
  WorkerLink* decoder = lanes_[r->decoder].link;
  ipc::Submit submit = make_submit(*r);
  submit.waited_us = r->waited_us;
  submit.prompt_logprobs = false;  // told by the prefill worker
  submit.loan = std::move(loan);
  decoder->note_dispatch();
  r->is_handed_over = true;
  quarantine_.on_dispatch(r->id, r->decoder);
  r->worker_generation = decoder->generation();
  (void)decoder->send(submit);  // it is dying: its end takes the request back
}

void Dispatcher::on_import_done(int lane, uint64_t wire_id) {
  Request* r = find_by_wire(wire_id);
  if (r == nullptr) return;  // ended meanwhile, the loan with it
  if (r->decoder != lane || !r->is_handed_over)
    return lanes_[lane].link->protocol_fault("the copy of a loan it was never given");
  lanes_[lane].link->note_progress();
  r->n_bad_loans = 0;
  leave_prefiller(r, ipc::Release{r->wire_id});
}

void Dispatcher::on_returned(int lane, const ipc::Returned& message) {
  Request* r = find_by_wire(message.id);
  if (r == nullptr) return;
  if (r->decoder != lane || !r->is_handed_over)
    return lanes_[lane].link->protocol_fault("the return of a request it was never given");
  metrics_->add(Metric::kReturns, 1, {message.is_preempted ? "preempted" : "loan"});
  if (!message.is_preempted) {
    log_warn("lent pages not taken", {{"request_id", r->in.id}, {"reason", message.reason}});
    if (++r->n_bad_loans >= kMaxBadLoans)
      return end_with_error(r, "failed", api_error("worker_failed", "the handoff failed each time: " + message.reason));
  }
  take_back(r);
}

void Dispatcher::leave_prefiller(Request* r, const ipc::ToWorker& goodbye) {
  if (r->prefiller < 0) return;
  Lane& lane = lanes_[r->prefiller];
  (void)lane.link->send(goodbye);  // it is dying: the loan dies with it
  --lane.n_prompts;
  quarantine_.on_leave(r->id, r->prefiller);
  r->prefiller = -1;
}

// Into the queue again, from which it goes on with the tokens it has.
void Dispatcher::take_back(Request* r) {
  leave_workers(r, ipc::FinishReason::kCancelled);
  queue_.requeue(waiting_entry(*r));
}

}  // namespace tandem
