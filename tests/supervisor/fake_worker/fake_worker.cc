// A worker that speaks the protocol without a model: tokens, text and log-probabilities are a
// function of prompt, seed, choice and position, so an interrupted stream can be compared with an
// uninterrupted one byte by byte. The "model file" is its script: `key=value` words, see Script.
// Prompt tokens from 900000 on are accidents, see Accident.
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ipc/channel.h"
#include "ipc/codec.h"

// A sanitizer's runtime would turn a signal into an exit code: the accidents must end the process
// as they say.
extern "C" {
__attribute__((visibility("default"), used)) const char* __tsan_default_options() {
  return "handle_segv=0";
}
__attribute__((visibility("default"), used)) const char* __asan_default_options() {
  return "handle_segv=0";
}
}

namespace tandem {
namespace {

enum Accident : int32_t {
  kAbortInPrefill = 900000,
  kSegfaultInPrefill = 900001,
  kHangInPrefill = 900002,
  kAbortAtTokenTen = 900003,      // each time it gets there
  kFailAtTokenFive = 900004,      // this request only: finish kFailed
  kNonsenseAtTokenFive = 900005,  // a token with a wrong index
  kDieOnce = 900006,              // SIGKILLs itself at token 5 in generation 1
};

struct Script {
  int64_t context = 4096, pool = 4096, batch = 4, chunk = 64, step_us = 500, load_ms = 0,
          refuse = 0, silent_load = 0, abort_with_cache = 0, abort_with_lean = 0, lean = 0;
};

Script read_script(int fd) {
  Script s;
  char text[4096];
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  if (n < 0) n = 0;
  std::istringstream in(std::string(text, static_cast<size_t>(n)));
  std::map<std::string, int64_t*> keys = {{"context", &s.context}, {"pool", &s.pool},
                                          {"batch", &s.batch},     {"chunk", &s.chunk},
                                          {"step_us", &s.step_us}, {"load_ms", &s.load_ms},
                                          {"refuse", &s.refuse},   {"silent_load", &s.silent_load},
                                          {"abort_with_cache", &s.abort_with_cache},
                                          {"abort_with_lean", &s.abort_with_lean},
                                          {"lean", &s.lean}};
  for (std::string word; in >> word;) {
    size_t eq = word.find('=');
    auto key = keys.find(word.substr(0, eq));
    if (eq != std::string::npos && key != keys.end())
      *key->second = std::atoll(word.c_str() + eq + 1);
  }
  return s;
}

uint64_t mix(uint64_t x) {
  x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}
// Some words hold characters of several bytes.
std::string word_of(int32_t token) {
  constexpr const char* kTails[] = {"", "é", "漢", "🙂"};
  return " w" + std::to_string(token) + kTails[token % 4];
}

struct Run {
  struct One {
    uint32_t choice = 0;
    std::vector<int32_t> generated;
    uint64_t bytes_released = 0;
    bool is_done = false;
    ipc::WeightBorders borders;
  };
  ipc::Submit in;
  std::vector<One> choices;
  uint64_t prompt_hash = 0;
  uint32_t n_done = 0;
  size_t n_total = 0;
  ipc::WeightBorders prompt_borders;
  int32_t token(uint32_t choice, size_t n, bool is_lean) const {
    return static_cast<int32_t>(
        mix(prompt_hash ^ mix(in.sampling.seed + choice * 7919 + n * 104729 + (is_lean ? 15485863 : 0))) % 1000);
  }
};

bool is_lean_at(const ipc::WeightBorders& borders, size_t position) {
  size_t n = 0;
  for (uint32_t border : borders) n += border <= position;
  return n % 2 == 1;
}

class FakeWorker {
 public:
  FakeWorker(int channel_fd, int model_fd, bool has_cache)
      : channel_(UniqueFd(channel_fd)), script_(read_script(model_fd)), has_cache_(has_cache) {}
  int run();

 private:
  void send(const ipc::FromWorker& message) {
    if (!channel_.send(ipc::encode(message)).ok()) _exit(0);
  }
  int load();
  void handle(ipc::ToWorker message);
  void prepare(const ipc::Prepare& p);
  void submit(ipc::Submit s);
  void step();
  void prefill(Run* run);
  void decode(Run* run, std::vector<ipc::TokenEvent>* events);
  void heartbeat();
  bool has(const Run& run, int32_t accident) const {
    for (int32_t t : run.in.prompt) {
      if (t == accident) return true;
    }
    return false;
  }

  ipc::Channel channel_;
  Script script_;
  const bool has_cache_;  // packed weights of an earlier start came along
  bool has_lean_file_ = false;
  std::string lean_trouble_;
  std::map<uint64_t, Run> runs_;
  uint64_t generation_ = 0;
  ipc::Heartbeat beat_;
  int64_t next_beat_us_ = 0;
  bool is_stopping_ = false;
  bool is_lean_ = false;  // the set of weights wanted: tokens depend on it
};

int FakeWorker::load() {
  send(ipc::Hello{ipc::kProtocolVersion, getpid()});
  if (script_.silent_load) pause();
  if (script_.abort_with_cache && has_cache_) abort();
  if (script_.abort_with_lean && has_lean_file_) abort();
  for (int64_t t = 0; t < script_.load_ms; t += 10) {
    send(ipc::Progress{"reading model",
                       static_cast<float>(t) / static_cast<float>(script_.load_ms)});
    usleep(10'000);
  }
  if (script_.refuse != 0) {
    send(
        ipc::Fatal{static_cast<int32_t>(script_.refuse), "script: field refuse is set, must be 0"});
    return static_cast<int>(script_.refuse);
  }
  ipc::Ready ready;
  ready.model.name = "fake", ready.model.architecture = "fake", ready.model.device = "cpu";
  ready.model.context_tokens = static_cast<int32_t>(script_.context);
  ready.model.pool_tokens = script_.pool;
  ready.model.vocab_size = 1'000'000, ready.model.has_chat_template = true;
  ready.model.max_batch_size = static_cast<int32_t>(script_.batch);
  if (!script_.lean) ready.model.no_lean_reason = "there is no lean weight set in the script";
  if (!lean_trouble_.empty()) ready.model.no_lean_reason = lean_trouble_;
  send(ready);
  return 0;
}

int FakeWorker::run() {
  std::vector<std::string> frames;
  bool is_loaded = false;
  while (!is_stopping_) {
    pollfd p{channel_.fd(), static_cast<short>(channel_.wants_write() ? POLLIN | POLLOUT : POLLIN),
             0};
    poll(&p, 1, runs_.empty() ? 20 : 0);
    if (channel_.wants_write() && !channel_.flush().ok()) return 0;
    frames.clear();
    Status status = channel_.receive(&frames);
    for (const std::string& f : frames) {
      auto m = ipc::decode_to_worker({reinterpret_cast<const uint8_t*>(f.data()), f.size()});
      if (!m.ok()) return 70;
      handle(std::move(*m));
    }
    if (!status.ok()) return 0;
    if (!is_loaded && generation_ > 0) {
      if (int code = load(); code != 0) return code;
      is_loaded = true;
    }
    if (is_loaded) step();
    if (is_loaded && monotonic_us() >= next_beat_us_) heartbeat();
  }
  return 0;
}

void FakeWorker::handle(ipc::ToWorker message) {
  if (auto* c = std::get_if<ipc::Configure>(&message)) {
    generation_ = c->generation;
    has_lean_file_ = !c->lean_names.empty();
    lean_trouble_ = c->lean_trouble;
  }
  if (auto* p = std::get_if<ipc::Prepare>(&message)) prepare(*p);
  if (auto* d = std::get_if<ipc::Detokenize>(&message)) {
    std::string text;
    for (int32_t id : d->ids) text += word_of(id);
    send(ipc::DetokenizeReply{d->id, true, "", text});
  }
  if (auto* s = std::get_if<ipc::Submit>(&message)) submit(std::move(*s));
  if (auto* c = std::get_if<ipc::Cancel>(&message)) runs_.erase(c->id);
  if (auto* w = std::get_if<ipc::SetWeights>(&message)) {
    if (!script_.lean) std::abort();
    is_lean_ = w->is_lean;
  }
  if (std::holds_alternative<ipc::Shutdown>(message)) is_stopping_ = true;
}

void FakeWorker::prepare(const ipc::Prepare& p) {
  std::string text = p.text;
  for (const ipc::Message& m : p.messages) text += m.content;
  if (text.find("ABORT") != std::string::npos) std::abort();
  ipc::PrepareReply reply;
  reply.id = p.id;
  reply.ok = text.find("REFUSE") == std::string::npos;
  if (!reply.ok) reply.error = "the template says no", reply.error_code = "template_error";
  reply.ids = p.ids;
  for (char c : text) reply.ids.push_back(static_cast<unsigned char>(c));
  // A text may name accidents: "#900001".
  if (size_t at = text.find("#9000"); at != std::string::npos)
    reply.ids.push_back(std::atoi(text.c_str() + at + 1));
  if (p.want_prompt_text) reply.prompt_text = text;
  send(reply);
}

void FakeWorker::submit(ipc::Submit s) {
  Run run;
  run.n_total = s.prompt.size();
  for (int32_t t : s.prompt) run.prompt_hash = mix(run.prompt_hash + static_cast<uint64_t>(t));
  for (const ipc::ChoiceState& c : s.choices) {
    run.choices.push_back({c.choice, c.generated, c.bytes_released, false, c.weight_borders});
    run.n_total += c.generated.size();
  }
  uint64_t id = s.id;
  run.in = std::move(s);
  for (const Run::One& c : run.choices) {
    if (!c.generated.empty()) run.prompt_borders = c.borders;
    for (size_t i = 0; i < c.generated.size(); ++i) {  // replayed with the sets they were drawn with
      if (c.generated[i] != run.token(c.choice, i, is_lean_at(c.borders, run.in.prompt.size() + i - 1))) std::abort();
    }
  }
  while (!run.prompt_borders.empty() && run.prompt_borders.back() >= run.in.prompt.size()) run.prompt_borders.pop_back();
  runs_[id] = std::move(run);
}

void FakeWorker::prefill(Run* run) {
  if (has(*run, kAbortInPrefill)) std::abort();
  if (has(*run, kSegfaultInPrefill)) raise(SIGSEGV);
  if (has(*run, kHangInPrefill)) pause();
  bool is_new = true;  // a prompt is computed again as it was
  for (const Run::One& c : run->choices) is_new = is_new && c.generated.empty();
  if (is_new && is_lean_ != ipc::is_lean_at_end(run->prompt_borders)) run->prompt_borders.push_back(run->n_done);
  run->n_done = static_cast<uint32_t>(
      std::min<size_t>(run->n_total, run->n_done + static_cast<size_t>(script_.chunk)));
  beat_.prompt_tokens += static_cast<uint64_t>(script_.chunk);
  if (run->in.prompt_logprobs) {
    ipc::PromptLogprobs out{run->in.id, 0, {}};
    for (size_t i = 0; i < std::min<size_t>(run->n_done, run->in.prompt.size()); ++i)
      out.entries.push_back(
          {{run->in.prompt[i], -static_cast<float>(i), word_of(run->in.prompt[i])}, {}});
    send(out);
  }
  send(ipc::PromptProgress{run->in.id, run->n_done, static_cast<uint32_t>(run->n_total), 0, run->prompt_borders});
}

// Text of the last (size mod 3) tokens is held back, as a stop string or half a character would be.
void FakeWorker::decode(Run* run, std::vector<ipc::TokenEvent>* events) {
  for (Run::One& c : run->choices) {
    if (c.is_done) continue;
    ipc::TokenEvent e;
    e.id = run->in.id, e.choice = c.choice;
    if (run->in.deadline_us > 0 && monotonic_us() > run->in.deadline_us) {
      e.finish = ipc::FinishReason::kDeadline;
      c.is_done = true;
      events->push_back(e);
      continue;
    }
    size_t n = c.generated.size();
    if (n == 5 && has(*run, kDieOnce) && generation_ == 1) raise(SIGKILL);
    if (n == 10 && has(*run, kAbortAtTokenTen)) std::abort();
    e.index = static_cast<uint32_t>(n == 5 && has(*run, kNonsenseAtTokenFive) ? 7 : n);
    if (n == 5 && has(*run, kFailAtTokenFive)) {
      e.finish = ipc::FinishReason::kFailed, e.error = "made to fail";
      c.is_done = true;
      events->push_back(e);
      continue;
    }
    if (run->in.max_tokens > 0) {
      if (n == 0) c.borders = run->prompt_borders;
      e.is_lean = n == 0 ? ipc::is_lean_at_end(c.borders) : is_lean_;
      if (e.is_lean != ipc::is_lean_at_end(c.borders)) c.borders.push_back(static_cast<uint32_t>(run->in.prompt.size() + n - 1));
      e.token = run->token(c.choice, n, e.is_lean);
      c.generated.push_back(e.token);
      if (run->in.sampling.n_top_logprobs >= 0)
        e.logprob =
            ipc::LogprobEntry{{e.token, -static_cast<float>(e.token % 10), word_of(e.token)}, {}};
      ++beat_.generated_tokens;
    }
    n = c.generated.size();
    if (n >= run->in.max_tokens) e.finish = ipc::FinishReason::kLength;
    if (n >= 40 && !run->in.sampling.ignore_eos && e.token % 37 == 0)
      e.finish = ipc::FinishReason::kStop;
    size_t n_out = e.finish == ipc::FinishReason::kNone ? n - n % 3 : n;
    std::string all;
    for (size_t i = 0; i < n_out; ++i) all += word_of(c.generated[i]);
    if (all.size() > c.bytes_released) {
      e.text = all.substr(c.bytes_released);
      c.bytes_released = all.size();
    }
    e.n_released = static_cast<uint32_t>(n_out);
    c.is_done = e.finish != ipc::FinishReason::kNone;
    events->push_back(e);
  }
}

void FakeWorker::step() {
  std::vector<ipc::TokenEvent> events;
  size_t n_running = 0;
  std::vector<uint64_t> done;
  for (auto& [id, run] : runs_) {
    if (n_running + run.choices.size() > static_cast<size_t>(script_.batch) && n_running > 0)
      continue;
    n_running += run.choices.size();
    if (run.n_done < run.n_total) {
      prefill(&run);
      continue;
    }
    decode(&run, &events);
    bool is_done = true;
    for (const Run::One& c : run.choices) is_done = is_done && c.is_done;
    if (is_done) done.push_back(id);
  }
  if (n_running > 0) {
    ++beat_.steps;
    usleep(static_cast<useconds_t>(script_.step_us));
  }
  ++beat_.engine_turns;
  beat_.n_running = beat_.last_batch = static_cast<uint32_t>(n_running);
  beat_.n_waiting = static_cast<uint32_t>(runs_.size());
  if (!events.empty()) send(ipc::TokenEvents{std::move(events)});
  for (uint64_t id : done) runs_.erase(id);
}

void FakeWorker::heartbeat() {
  beat_.pages_used = static_cast<int64_t>(runs_.size());
  beat_.pages_free = 256 - beat_.pages_used;
  beat_.sampling_seconds = static_cast<double>(beat_.steps) * 1e-4;
  send(beat_);
  next_beat_us_ = monotonic_us() + 50'000;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc < 7 || std::strcmp(argv[1], "--role") != 0) return 64;
  return tandem::FakeWorker(std::atoi(argv[4]), std::atoi(argv[6]),
                            argc > 7 && std::strcmp(argv[7], "--cache-fd") == 0)
      .run();
}
