// A supervisor in this process with a fake worker in another: its loop on a thread, its requests
// through InferenceService as the API makes them.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "supervisor/supervisor.h"
#include "tests/temp_folder.h"

namespace tandem {

inline bool wait_until(const std::function<bool()>& condition, int timeout_ms = 20'000) {
  int64_t end = monotonic_us() + timeout_ms * 1000;
  while (!condition()) {
    if (monotonic_us() > end) return false;
    usleep(2'000);
  }
  return true;
}

// All that a client got of one request. Filled on client threads, so without Catch's macros.
struct Reply {
  std::map<uint32_t, std::string> texts;
  std::map<uint32_t, std::vector<std::pair<int32_t, float>>> logprobs;
  std::map<uint32_t, ipc::FinishReason> finishes;
  std::vector<int32_t> prompt_logprobs;
  int64_t prompt_tokens = 0, completion_tokens = 0;
  std::string error_code, error_message;
  int http_status = 200, retry_after_s = 0;
  std::set<std::string> degraded;  // every mark of every event
  std::string reason;
  bool has_ended = false;

  void take_error(const api::ApiError& error) {
    error_code = error.code, error_message = error.message, http_status = error.http_status;
    retry_after_s = error.retry_after_s.value_or(0);
    has_ended = true;
  }
  void take(const api::StreamEvent& e) {
    using Kind = api::StreamEvent::Kind;
    if (has_ended) error_code = "test: event after the end";
    degraded.insert(e.degraded.begin(), e.degraded.end());
    if (!e.reason.empty()) reason = e.reason;
    if (e.kind == Kind::kText || e.kind == Kind::kChoiceEnd) {
      if (finishes.count(e.choice) > 0) error_code = "test: event of a finished choice";
      texts[e.choice] += e.text;
      for (const auto& l : e.logprobs)
        logprobs[e.choice].emplace_back(l.chosen.token, l.chosen.logprob);
    }
    if (e.kind == Kind::kChoiceEnd) finishes[e.choice] = e.finish;
    if (e.kind == Kind::kPromptLogprobs) {
      for (const auto& l : e.logprobs) prompt_logprobs.push_back(l.chosen.token);
    }
    if (e.kind == Kind::kEnd) {
      prompt_tokens = e.prompt_tokens, completion_tokens = e.completion_tokens;
      has_ended = true;
    }
    if (e.kind == Kind::kError) take_error(*e.error);
  }
  bool same_as(const Reply& o) const {
    return texts == o.texts && logprobs == o.logprobs && finishes == o.finishes &&
           error_code == o.error_code && prompt_logprobs == o.prompt_logprobs &&
           completion_tokens == o.completion_tokens;
  }
};

inline api::GenerateRequest ask(std::vector<int32_t> prompt, uint32_t max_tokens = 60,
                                uint64_t seed = 1) {
  static std::atomic<int> number{0};
  api::GenerateRequest r;
  r.id = "req_" + std::to_string(++number);
  r.endpoint = "chat";
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.sampling.seed = seed;
  r.sampling.ignore_eos = true;
  r.received_us = monotonic_us();
  r.deadline_us = r.received_us + 120'000'000;
  r.is_stream = true;
  return r;
}

class Box {
 public:
  explicit Box(const std::string& script = "", const std::function<void(Config*)>& change = {},
               bool wait = true, Ladder ladder = {}) {
    static bool is_log_ready = (log_init("test", LogLevel::kError), true);
    (void)is_log_ready;
    model = dir + "/model.gguf";
    if (script != "-") write_model(script);
    config.workers_libexec_dir = TANDEM_FAKE_WORKER_DIR;
    config.model_path = model;
    config.paths_state_dir = dir;
    config.paths_cache_dir = dir;
    config.log_level = "error";
    if (change) change(&config);
    log = RequestLog::open({});
    supervisor = std::make_unique<Supervisor>(config, log.get(), std::move(ladder));
    thread = std::thread([this] { supervisor->run({}); });
    if (wait) REQUIRE(wait_until([&] { return is_ready(); }));
  }
  ~Box() {
    stop();
  }
  void stop() {
    if (!thread.joinable()) return;
    supervisor->drain();
    thread.join();
  }
  void write_model(const std::string& script) {
    std::ofstream(model + ".new") << script << "\n";
    std::filesystem::rename(model + ".new", model);
  }
  bool is_ready() { return supervisor->readiness().state == api::Readiness::State::kReady; }
  int64_t pid() {
    std::string json = supervisor->status_json();
    size_t at = json.find("\"pid\":");
    return std::atoll(json.c_str() + at + 6);
  }
  // Sends a signal to the worker there is; false: there is none just now.
  bool strike(int sig = SIGKILL) {
    int64_t p = pid();
    return p > 0 && ::kill(static_cast<pid_t>(p), sig) == 0;
  }
  Reply run(api::GenerateRequest request, const std::function<void()>& on_event = {}) {
    Reply reply;
    auto stream = supervisor->submit(std::move(request));
    if (!stream.ok()) {
      reply.take_error(stream.error());
      return reply;
    }
    int64_t end = monotonic_us() + 60'000'000;
    while (!reply.has_ended) {
      if (monotonic_us() > end) {
        reply.error_code = "test_hangs";
        return reply;
      }
      api::StreamEvent e = stream.value()->next(std::chrono::milliseconds(100));
      if (e.kind == api::StreamEvent::Kind::kIdle) continue;
      reply.take(e);
      if (on_event) on_event();
    }
    return reply;
  }
  double metric(Metric m, Metrics::Labels labels = {}) {
    return supervisor->metrics().value(m, labels);
  }
  std::vector<ipc::RequestRecord> rows() { return *log->query({}); }
  double restarts() {
    double n = 0;
    for (const char* cause :
         {"crash", "killed", "watchdog", "internal", "device", "config", "exit", "admin"})
      n += metric(Metric::kWorkerRestarts, {"both", cause});
    return n;
  }
  bool is_idle() {
    std::string json = supervisor->status_json();
    return json.find("\"requests\":[]") != std::string::npos;
  }

  testing::TempFolder folder;
  const std::string& dir = folder.path;
  std::string model;
  Config config;
  std::unique_ptr<RequestLog> log;
  std::unique_ptr<Supervisor> supervisor;
  std::thread thread;
};

}  // namespace tandem
