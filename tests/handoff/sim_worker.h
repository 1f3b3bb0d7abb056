// A worker without a process: the real streams, engine and host pool over the fake backend, a queue of messages in
// each direction, and lives that end between any two of them. Its pool's memory outlives it, as tandemd's memfd does.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "engine/engine.h"
#include "supervisor/worker_link.h"
#include "tests/engine/fake_backend.h"
#include "worker/host_pool.h"
#include "worker/lent_pools.h"
#include "worker/request_streams.h"

namespace tandem {

struct SimOptions {
  FakeModel model;
  int max_batch = 4, chunk = 16, context = 200;
  int full_pages = 40, window_pages = 40;
  bool is_on_device = false;  // computes prompts of up to 20 tokens sooner than the others
};

class SimWorker : public WorkerLink {
 public:
  SimWorker(ipc::Role role, SimOptions options, const Clock* clock, const Tokenizer* tokenizer);
  ipc::Role role() const override { return role_; }
  WorkerState state() const override { return engine_ ? WorkerState::kReady : WorkerState::kBackoff; }
  const std::string& cause() const override { return cause_; }
  const std::optional<ipc::ModelInfo>& model() const override { return info_; }
  uint64_t generation() const override { return generation_; }
  bool send(const ipc::ToWorker& message) override;
  void note_dispatch() override {}
  void note_progress() override {}
  void protocol_fault(const std::string& what) override { fault = "protocol fault: " + what; }

  void start(const std::vector<int>& lent_fds);  // a new life
  // Flips bits of a dead worker's pool: `n` bytes anywhere.
  void damage(int n, const std::function<size_t(size_t)>& random_below);
  void die();                                    // what it sent before is still in from_worker
  void take_message();                           // the oldest one to it
  bool turn();                                   // of its engine
  bool is_alive() const { return engine_ != nullptr; }
  int pool_fd() const { return fd_.get(); }
  const EngineCounters& counters() const { return engine_->counters(); }
  const LentPools* lent_pools() const { return lent_.get(); }
  std::string broken_accounts();  // "" or what is wrong with pages just now
  int64_t n_pages() const { return options_.full_pages + options_.window_pages; }

  std::deque<ipc::ToWorker> to_worker;
  std::deque<ipc::FromWorker> from_worker;
  std::string fault;
  bool plant_leak = false;        // Release is lost
  bool plant_trust = false;       // sealed pages of an earlier life are used without a look at their content
  bool plant_stale_copy = false;  // lent pages are copied without a look at whose they are

 private:
  class Unchecked;
  class Trusting;
  void emit(RequestStreams::Output output);
  void submit(ipc::Submit message);
  const ipc::Role role_;
  const SimOptions options_;
  const Clock* const clock_;
  const Tokenizer* const tokenizer_;
  UniqueFd fd_;
  HostPoolShape shape_;
  std::string cause_ = "dead";
  std::optional<ipc::ModelInfo> info_;
  uint64_t generation_ = 0;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<LentPools> lent_;
  std::unique_ptr<PageSource> unchecked_;
  std::unique_ptr<PageLedger> trusting_;
  std::unique_ptr<FakeBackend> backend_;
  std::unique_ptr<Engine> engine_;
  std::optional<RequestStreams> streams_;
};

}  // namespace tandem
