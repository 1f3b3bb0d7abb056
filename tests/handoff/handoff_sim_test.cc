// Thousands of random schedules of messages, steps, deaths, restarts and cancels between prefill and decode workers:
// every request ends once, with the text of an undisturbed run, and all pages come back. TANDEM_SIM_SCHEDULES sets
// another number of schedules, TANDEM_SIM_SEED other ones.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <random>

#include "sim_worker.h"
#include "base/log.h"
#include "supervisor/dispatcher.h"
#include "tests/engine/engine_harness.h"
#include "tests/tokenizer/small_vocabulary.h"

namespace tandem {
namespace {

struct Shape {
  int n_prefill, n_decode, n_both;
  SimOptions prefill, decode;
};

struct Tally {
  int64_t deaths = 0, resumes = 0, returns = 0, imported_pages = 0, readopted = 0, cancelled = 0, finished = 0;
  std::map<std::string, int64_t> died_while;  // what was in flight at a death
};

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> t = make(bpe_vocabulary());
  return *t;
}

class Sim {
 public:
  Sim(const Shape& shape, uint32_t seed, Tally* tally)
      : shape_(shape), rng_(seed), tally_(tally), log_(RequestLog::open({})), accounting_(&metrics_, log_.get(), &recent_) {
    config_.cache_page_size_tokens = shape.prefill.model.page_size;
    dispatcher_ = std::make_unique<Dispatcher>(config_, &metrics_, &accounting_, &clock_);
    auto add = [&](ipc::Role role, int n, const SimOptions& o) {
      for (int i = 0; i < n; ++i) workers_.push_back(std::make_unique<SimWorker>(role, o, &clock_, &tokenizer()));
    };
    add(ipc::Role::kPrefill, shape.n_prefill, shape.prefill);
    add(ipc::Role::kDecode, shape.n_decode, shape.decode);
    add(ipc::Role::kBoth, shape.n_both, shape.decode);
    std::vector<WorkerLink*> links;
    for (auto& w : workers_) {
      if (w->role() == ipc::Role::kPrefill) lent_fds_.push_back(w->pool_fd());
      links.push_back(w.get());
    }
    dispatcher_->set_workers(links);
    dispatcher_->set_observers(&history_, &recent_, &degradation_);
    if (shape.decode.is_on_device) dispatcher_->set_placement(&placement_);
    clock_.set_us(1'000'000);
  }
  void plant_leak() { workers_[0]->plant_leak = true; }
  void plant_trust() {
    for (auto& w : workers_) w->plant_trust = true;
  }
  void plant_stale_copy() {
    for (auto& w : workers_) w->plant_stale_copy = true;
  }

  // "" or what went wrong.
  std::string run(int n_steps, int death_in) {
    for (auto& w : workers_) w->start(lent_fds_);
    if (shape_.decode.is_on_device) {
      std::vector<WorkerLink*> links;
      for (auto& w : workers_) links.push_back(w.get());
      placement_.turn(links, [] { return std::string("model"); });
      if (!placement_.is_for_device(20) || placement_.is_for_device(21)) return "prompts of other lengths than 1 to 20 go to the device";
    }
    for (int step = 0; step < n_steps; ++step) {
      if (std::string wrong = act(death_in); !wrong.empty()) return wrong;
    }
    return settle();
  }

 private:
  struct Live {
    EngineRequest request;  // as for fake_text()
    std::shared_ptr<ResponseBuffer> buffer;
    std::map<uint32_t, std::vector<int32_t>> tokens;
    std::map<uint32_t, ipc::FinishReason> finishes;
    bool is_cancelled = false, has_ended = false;
    std::string error;
  };
  size_t upto(size_t n) { return rng_() % n; }

  std::string act(int death_in) {
    clock_.advance_us(100);
    size_t which = upto(workers_.size());
    SimWorker& w = *workers_[which];
    if (death_in > 0 && upto(static_cast<size_t>(death_in)) == 0 && w.is_alive()) return kill(which), "";
    if (!w.is_alive()) {
      if (upto(6) == 0) restart(which);
      return "";
    }
    switch (upto(8)) {
      case 0: if (live_.size() < 5) submit(); break;
      case 1: dispatcher_->turn(); break;
      case 2: if (!live_.empty() && upto(25) == 0) cancel(); break;
      case 3: case 4: if (!w.to_worker.empty()) w.take_message(); break;
      case 5: case 6: deliver(which); break;
      default: w.turn();
    }
    if (std::string wrong = w.broken_accounts(); !wrong.empty()) return wrong;
    return ++n_acts_ % 25 == 0 ? read_replies() : "";  // a look at an empty buffer costs a system call
  }

  void deliver(size_t which) {
    SimWorker& w = *workers_[which];
    if (w.from_worker.empty()) return;
    ipc::FromWorker message = std::move(w.from_worker.front());
    w.from_worker.pop_front();
    dispatcher_->on_message(static_cast<int>(which), std::move(message));
  }

  void kill(size_t which) {
    SimWorker& w = *workers_[which];
    ++tally_->deaths;
    if (w.counters().pages_lent > 0) ++tally_->died_while["lending"];
    for (const auto& m : w.to_worker) {
      if (std::holds_alternative<ipc::Lend>(m)) ++tally_->died_while["told of a chunk"];
      if (const auto* s = std::get_if<ipc::Submit>(&m); s && s->loan) ++tally_->died_while["given a loan"];
      if (std::holds_alternative<ipc::Release>(m)) ++tally_->died_while["released"];
    }
    for (const auto& m : w.from_worker) {
      if (std::holds_alternative<ipc::Lent>(m)) ++tally_->died_while["having lent"];
      if (std::holds_alternative<ipc::ImportDone>(m)) ++tally_->died_while["having copied"];
    }
    if (w.lent_pools()) tally_->imported_pages += static_cast<int64_t>(w.lent_pools()->counters().pages.load());
    w.die();
    if (upto(3) == 0) w.damage(1 + static_cast<int>(upto(20)), [this](size_t n) { return upto(n); });
    if (upto(4) == 0) w.from_worker.clear();  // died before it could write
    while (!w.from_worker.empty()) deliver(which);
    dispatcher_->on_worker_end(static_cast<int>(which), {"killed", "signal 9 (SIGKILL)", false});
  }

  void restart(size_t which) {
    SimWorker& w = *workers_[which];
    w.start(lent_fds_);
    w.turn();
    tally_->readopted += static_cast<int64_t>(w.counters().pages_readopted.load());
  }

  void submit() {
    Live live;
    int n_choices = upto(4) == 0 ? 2 + static_cast<int>(upto(5)) : 1;
    live.request = fake_request(1 + static_cast<int>(upto(upto(3) == 0 ? 100 : 40)), 1 + static_cast<uint32_t>(upto(25)),
                                rng_() % 7, n_choices);
    live.request.sampling.ignore_eos = upto(2) == 0;
    api::GenerateRequest in;
    in.id = "r" + std::to_string(++n_submitted_);
    in.prompt = live.request.prompt;
    in.n_choices = n_choices;
    in.max_tokens = live.request.max_tokens;
    in.sampling.seed = live.request.sampling.seed;
    in.sampling.ignore_eos = live.request.sampling.ignore_eos;
    in.sampling.n_top_logprobs = 0;
    in.prompt_logprobs = upto(6) == 0;
    in.priority = static_cast<ipc::Priority>(upto(3));
    in.received_us = clock_.now_us();
    in.is_stream = true;
    live.buffer = std::make_shared<ResponseBuffer>(true);
    uint64_t id = 0;
    if (dispatcher_->accept(std::move(in), live.buffer, "fake", &id)) return;
    live_.emplace(id, std::move(live));
  }

  void cancel() {
    auto it = std::next(live_.begin(), static_cast<int>(upto(live_.size())));
    it->second.is_cancelled = true;
    ++tally_->cancelled;
    dispatcher_->cancel(it->first);
    live_.erase(it);
  }

  std::string read_replies() {
    for (auto it = live_.begin(); it != live_.end();) {
      Live& l = it->second;
      for (;;) {
        api::StreamEvent e = l.buffer->next(std::chrono::milliseconds(0));
        using Kind = api::StreamEvent::Kind;
        if (e.kind == Kind::kIdle) break;
        if (e.kind != Kind::kPromptLogprobs) {
          for (const auto& p : e.logprobs) l.tokens[e.choice].push_back(p.chosen.token);
        }
        if (e.kind == Kind::kChoiceEnd) l.finishes[e.choice] = e.finish;
        if (e.kind == Kind::kError) l.error = e.error->message;
        if (e.kind == Kind::kEnd || e.kind == Kind::kError) {
          l.has_ended = true;
          break;
        }
      }
      if (!l.has_ended) {
        ++it;
        continue;
      }
      if (std::string wrong = compare(l); !wrong.empty()) return wrong;
      ++tally_->finished;
      it = live_.erase(it);
    }
    return "";
  }

  std::string compare(const Live& l) const {
    if (!l.error.empty()) return "failed: " + l.error;
    for (const auto& c : l.request.choices) {
      FakeText text = fake_text(shape_.decode.model, l.request, c.choice, shape_.decode.context, shape_.decode.context);
      auto got = l.tokens.find(c.choice);
      if ((got == l.tokens.end() ? std::vector<int32_t>{} : got->second) != text.tokens)
        return "another text than undisturbed, choice " + std::to_string(c.choice) + " of " +
               std::to_string(l.request.choices.size());
      bool is_stop = text.end == SequenceEnd::kEndToken;
      if (l.finishes.at(c.choice) != (is_stop ? ipc::FinishReason::kStop : ipc::FinishReason::kLength)) return "another end";
    }
    return "";
  }

  // No more deaths: everything ends, and all pages are free or cached.
  std::string settle() {
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (!workers_[i]->is_alive()) restart(i);
    }
    int idle_rounds = 0;
    for (int round = 0; round < 20'000 && idle_rounds < 3; ++round) {
      clock_.advance_us(1000);
      dispatcher_->turn();
      bool has_worked = false;
      for (size_t i = 0; i < workers_.size(); ++i) {
        SimWorker& w = *workers_[i];
        while (!w.to_worker.empty()) w.take_message(), has_worked = true;
        has_worked = w.turn() || has_worked;
        while (!w.from_worker.empty()) deliver(i), has_worked = true;
        if (std::string wrong = w.broken_accounts(); !wrong.empty()) return wrong;
      }
      if (std::string wrong = read_replies(); !wrong.empty()) return wrong;
      idle_rounds = has_worked ? 0 : idle_rounds + 1;
    }
    if (!live_.empty()) return std::to_string(live_.size()) + " requests never end";
    if (!dispatcher_->is_empty()) return "the dispatcher still holds a request";
    for (auto& w : workers_) {
      std::string who = ipc::role_name(w->role());
      if (w->counters().pages_lent != 0) return who + ": " + std::to_string(w->counters().pages_lent) + " pages stay lent";
      if (w->counters().pages_used != 0) return who + ": " + std::to_string(w->counters().pages_used) + " pages leaked";
      if (w->lent_pools()) tally_->imported_pages += static_cast<int64_t>(w->lent_pools()->counters().pages.load());
    }
    tally_->resumes += static_cast<int64_t>(metrics_.value(Metric::kResumes));
    tally_->returns += static_cast<int64_t>(metrics_.value(Metric::kReturns, {"preempted"}) + metrics_.value(Metric::kReturns, {"loan"}));
    return "";
  }

  const Shape shape_;
  std::mt19937 rng_;
  Tally* tally_;
  Config config_;
  FakeClock clock_;
  Metrics metrics_;
  std::unique_ptr<RequestLog> log_;
  Recent recent_;
  History history_;
  Degradation degradation_{Ladder{}, &metrics_};
  PromptPlacement placement_{"/nonexistent"};
  Accounting accounting_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<int> lent_fds_;
  std::map<uint64_t, Live> live_;
  int n_submitted_ = 0, n_acts_ = 0;
};

Shape shape(int n_prefill, int n_decode, int n_both, int prefill_pages = 60, int decode_pages = 60) {
  Shape s{n_prefill, n_decode, n_both, {}, {}};
  s.prefill.full_pages = s.prefill.window_pages = prefill_pages;
  s.decode.full_pages = s.decode.window_pages = decode_pages;
  return s;
}

Shape on_device(Shape s) {
  s.decode.is_on_device = true;
  return s;
}

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

}  // namespace

TEST_CASE("deaths at every message: no request is lost, no page leaks") {
  static bool is_quiet = (log_init("test", LogLevel::kError), true);
  (void)is_quiet;
  const Shape shapes[] = {
      shape(1, 1, 0),          // the plain pair
      shape(2, 1, 0),          // asymmetric, both ways
      shape(1, 2, 0),
      shape(1, 1, 0, 40, 36),  // pages run out at the decoder: requests go back
      shape(1, 1, 1),          // both shapes side by side
      on_device(shape(1, 1, 0)),          // short prompts are the decoder's
      on_device(shape(2, 2, 0, 40, 36)),
      shape(0, 0, 1, 40, 40),
  };
  const int n_schedules = from_environment("TANDEM_SIM_SCHEDULES", 3000);
  const auto first_seed = static_cast<uint32_t>(from_environment("TANDEM_SIM_SEED", 1));
  Tally tally;
  for (int i = 0; i < n_schedules; ++i) {
    uint32_t seed = first_seed + static_cast<uint32_t>(i);
    Sim sim(shapes[i % std::size(shapes)], seed, &tally);
    std::string wrong = sim.run(400, i % 10 == 0 ? 0 : 40 + 20 * (i % 8));
    if (!wrong.empty()) FAIL("schedule " << i << ", seed " << seed << ": " << wrong);
  }
  std::string where;
  for (const auto& [what, n] : tally.died_while) where += what + " " + std::to_string(n) + ", ";
  WARN(n_schedules << " schedules: " << tally.deaths << " deaths (" << where << "), " << tally.finished << " requests finished, "
                   << tally.cancelled << " cancelled, " << tally.resumes << " dispatched again, " << tally.returns
                   << " given back, " << tally.imported_pages << " pages copied, " << tally.readopted << " readopted");
  if (n_schedules < 600) return;
  for (const char* what : {"lending", "told of a chunk", "given a loan", "released", "having lent", "having copied"})
    CHECK(tally.died_while[what] > 0);
  CHECK((tally.deaths > n_schedules && tally.resumes > 0 && tally.returns > 0 && tally.imported_pages > 0));
  CHECK((tally.readopted > 0 && tally.finished > 2 * n_schedules && tally.cancelled > 0));
}

TEST_CASE("a planted leak is reported") {
  Tally tally;
  Sim sim(shape(1, 1, 0), 1, &tally);
  sim.plant_leak();
  CHECK(sim.run(2000, 0) != "");
}

TEST_CASE("a planted belief in pages whose content was damaged is reported") {
  Tally tally;
  int n_reported = 0;
  for (uint32_t seed = 1; seed <= 200 && n_reported == 0; ++seed) {
    Sim sim(shape(0, 0, 1), seed, &tally);
    sim.plant_trust();
    n_reported += sim.run(1500, 60) != "";
  }
  CHECK(n_reported > 0);
}

TEST_CASE("a planted belief in dead owners' pages is reported") {
  Tally tally;
  int n_reported = 0;
  for (uint32_t seed = 1; seed <= 200 && n_reported == 0; ++seed) {
    Sim sim(shape(1, 1, 0, 40, 60), seed, &tally);
    sim.plant_stale_copy();
    n_reported += sim.run(1500, 60) != "";
  }
  CHECK(n_reported > 0);
}

}  // namespace tandem
