#include "sim_worker.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/check.h"

namespace tandem {

// The planted fault: believes every loan.
class SimWorker::Unchecked : public PageSource {
 public:
  Unchecked(std::vector<int> fds, HostPool* own) : fds_(std::move(fds)), own_(own) {}
  Status copy(uint32_t source, uint64_t, int group, RemotePage from, PageId to) override {
    auto reader = HostPool::open_reader(fds_[source], own_->shape());
    if (!reader.ok()) return reader.status();
    std::memcpy(own_->page_memory(group, to), (*reader)->page_memory(group, from.page),
                static_cast<size_t>(own_->shape().page_bytes[static_cast<size_t>(group)]));
    return ok_status();
  }

 private:
  std::vector<int> fds_;
  HostPool* own_;
};

// Another one: takes the word of an earlier life.
class SimWorker::Trusting : public PageLedger {
 public:
  explicit Trusting(HostPool* pool) : pool_(pool) {}
  void on_taken(int g, PageId p) override { pool_->on_taken(g, p); }
  void on_freed(int g, PageId p) override { pool_->on_freed(g, p); }
  void on_sealed(int g, PageId p, const SealedBlock& block) override { pool_->on_sealed(g, p, block); }
  void on_unsealed(int g, PageId p) override { pool_->on_unsealed(g, p); }
  uint32_t serial(int g, PageId p) const override { return pool_->serial(g, p); }
  std::vector<SealedPage> sealed_pages() override { return pool_->sealed_pages(); }
  bool verify(int, PageId) override { return true; }

 private:
  HostPool* pool_;
};

SimWorker::SimWorker(ipc::Role role, SimOptions options, const Clock* clock, const Tokenizer* tokenizer)
    : role_(role), options_(options), clock_(clock), tokenizer_(tokenizer), fd_(memfd_create("sim", MFD_CLOEXEC)) {
  FakeBackend backend(options.model);
  shape_ = {1, options.model.page_size, tokenizer->n_tokens(), backend.page_bytes(), {options.full_pages, options.window_pages}};
  CHECK(ftruncate(fd_.get(), *HostPool::bytes_needed(shape_)) == 0);
}

void SimWorker::start(const std::vector<int>& lent_fds) {
  ++generation_;
  auto pool = HostPool::open(fd_.get(), shape_, generation_);
  CHECK(pool.ok());
  pool_ = std::move(*pool);
  backend_ = std::make_unique<FakeBackend>(options_.model);
  CHECK(backend_->place_pages(shape_.n_pages, {pool_->group_memory(0), pool_->group_memory(1)}).ok());
  EngineOptions o;
  o.max_batch_size = options_.max_batch, o.prefill_chunk_tokens = options_.chunk;
  o.context_tokens = options_.context, o.page_size = options_.model.page_size;
  o.n_pages = shape_.n_pages;
  o.ledger = pool_.get();
  if (plant_trust) {
    trusting_ = std::make_unique<Trusting>(pool_.get());
    o.ledger = trusting_.get();
  }
  if (role_ == ipc::Role::kDecode) {
    lent_ = std::make_unique<LentPools>(lent_fds, pool_.get());
    o.source = lent_.get();
    if (plant_stale_copy) {
      unchecked_ = std::make_unique<Unchecked>(lent_fds, pool_.get());
      o.source = unchecked_.get();
    }
  }
  streams_.emplace(tokenizer_, role_, generation_);
  engine_ = std::make_unique<Engine>(backend_.get(), o, clock_, [this](EngineEvents events) {
    RequestStreams::Output output;
    streams_->translate(std::move(events), &output);
    emit(std::move(output));
  });
  ipc::ModelInfo info;
  info.context_tokens = options_.context;
  info.pool_tokens = engine_->max_tokens_per_sequence();
  info.max_batch_size = options_.max_batch;
  info.device = options_.is_on_device ? "gpu" : "cpu";
  info.prompt_fixed_us = options_.is_on_device ? 0 : 20, info.prompt_token_ns = options_.is_on_device ? 2000 : 1000;
  info_ = info;
}

void SimWorker::die() {
  to_worker.clear();
  engine_.reset(), backend_.reset(), lent_.reset(), unchecked_.reset(), trusting_.reset(), streams_.reset(), pool_.reset();
}

void SimWorker::damage(int n, const std::function<size_t(size_t)>& random_below) {
  auto pool = HostPool::open(fd_.get(), shape_, generation_ + 1);
  CHECK(pool.ok());
  size_t table = 4096 + static_cast<size_t>(n_pages()) * 200;  // the header, and most of the slots
  for (int i = 0; i < n; ++i) {
    int group = static_cast<int>(random_below(2));
    size_t page_bytes = static_cast<size_t>(shape_.page_bytes[static_cast<size_t>(group)]);
    uint8_t* content = (*pool)->page_memory(group, static_cast<PageId>(random_below(static_cast<size_t>(shape_.n_pages[static_cast<size_t>(group)]))));
    uint8_t* at = random_below(4) == 0 ? (*pool)->memory() + random_below(table)
                                       : content + random_below(page_bytes);
    *at = static_cast<uint8_t>(*at ^ (1u << random_below(8)));
  }
}

bool SimWorker::send(const ipc::ToWorker& message) {
  if (!is_alive()) return false;
  to_worker.push_back(message);
  return true;
}

void SimWorker::submit(ipc::Submit message) {
  RequestStreams::Output output;
  auto request = streams_->begin(std::move(message), &output);
  emit(std::move(output));
  if (!request) return;
  request->end_tokens = {kFakeEndToken};
  CHECK(engine_->submit(std::move(*request)).ok());
}

void SimWorker::take_message() {
  ipc::ToWorker message = std::move(to_worker.front());
  to_worker.pop_front();
  if (auto* s = std::get_if<ipc::Submit>(&message)) {
    submit(std::move(*s));
  } else if (auto* c = std::get_if<ipc::Cancel>(&message)) {
    (void)streams_->cancel(c->id, c->reason);
    engine_->cancel(c->id, -1, false, SequenceEnd::kCancelled);
  } else if (auto* lend = std::get_if<ipc::Lend>(&message)) {
    engine_->arrive(engine_loan(lend->id, lend->loan), std::move(lend->tokens));
  } else if (auto* release = std::get_if<ipc::Release>(&message)) {
    if (!plant_leak) engine_->release(release->id);
  }
}

bool SimWorker::turn() {
  bool has_worked = engine_->turn();
  if (!backend_->fault.empty()) fault = backend_->fault;
  return has_worked;
}

void SimWorker::emit(RequestStreams::Output output) {
  for (ipc::FromWorker& m : output.messages) from_worker.push_back(std::move(m));
  for (const auto& e : output.ended) engine_->cancel(e.id, static_cast<int>(e.choice), true, SequenceEnd::kNone);
}

std::string SimWorker::broken_accounts() {
  const EngineCounters& c = engine_->counters();
  int64_t used = c.pages_used, free = c.pages_free;
  if (c.turns > 0 && used + free != n_pages())
    return std::to_string(used) + " pages used and " + std::to_string(free) + " free of " + std::to_string(n_pages());
  return fault;
}

}  // namespace tandem
