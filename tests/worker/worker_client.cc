#include "worker_client.h"

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "ipc/codec.h"

namespace tandem {
namespace {
constexpr int kFirstHighFd = 100;  // above what the child's fixed numbers could hit
constexpr int kPatienceMs = 120'000;
}  // namespace

WorkerClient::WorkerClient(const std::string& model_path, const std::string& config_toml, int pool_fd)
    : pool_fd_(pool_fd) {
  auto pair = ipc::channel_pair();
  REQUIRE(pair.ok());
  UniqueFd model_fd(open(model_path.c_str(), O_RDONLY | O_CLOEXEC));
  INFO(model_path);
  REQUIRE(model_fd.valid());
  UniqueFd channel_high(fcntl(pair->second.get(), F_DUPFD_CLOEXEC, kFirstHighFd));
  UniqueFd model_high(fcntl(model_fd.get(), F_DUPFD_CLOEXEC, kFirstHighFd));
  UniqueFd pool_high(pool_fd < 0 ? -1 : fcntl(pool_fd, F_DUPFD_CLOEXEC, kFirstHighFd));
  pid_ = fork();
  REQUIRE(pid_ >= 0);
  if (pid_ == 0) {
    dup2(channel_high.get(), 3);
    dup2(model_high.get(), 4);
    if (pool_fd >= 0) dup2(pool_high.get(), 5);
    execl(TANDEM_WORKER, "tandem-worker", "--role", "both", "--channel-fd", "3", "--model-fds", "4",
          pool_fd < 0 ? nullptr : "--pool-fd", "5", nullptr);
    _exit(127);
  }
  channel_.emplace(std::move(pair->first));
  ipc::Configure configure;
  configure.config_toml = config_toml;
  configure.model_names = {model_path.substr(model_path.rfind('/') + 1)};
  configure.generation = 1;
  send(configure);
}

WorkerClient::~WorkerClient() {
  if (is_reaped_) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void WorkerClient::send(const ipc::ToWorker& message) { (void)channel_->send(ipc::encode(message)); }
void WorkerClient::send_raw(std::string frame) { (void)channel_->send(std::move(frame)); }
void WorkerClient::kill(int signal_number) { ::kill(pid_, signal_number); }

int WorkerClient::wait_exit() {
  int status = 0;
  REQUIRE(waitpid(pid_, &status, 0) == pid_);
  is_reaped_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::optional<ipc::FromWorker> WorkerClient::next_of_any_kind() {
  int64_t give_up = monotonic_us() + int64_t{kPatienceMs} * 1000;
  for (;;) {
    if (next_frame_ < frames_.size()) {
      const std::string& frame = frames_[next_frame_++];
      auto message = ipc::decode_from_worker({reinterpret_cast<const uint8_t*>(frame.data()), frame.size()});
      REQUIRE(message.ok());
      if (auto* ready = std::get_if<ipc::Ready>(&*message)) model = ready->model;
      if (auto* beat = std::get_if<ipc::Heartbeat>(&*message)) last_heartbeat = *beat;
      if (auto* wanted = std::get_if<ipc::PoolRequest>(&*message)) {
        REQUIRE(ftruncate(pool_fd_, wanted->bytes) == 0);
        send(ipc::PoolGrant{});
      }
      if (auto* progress = std::get_if<ipc::Progress>(&*message)) {
        if (phases.empty() || phases.back() != progress->phase) phases.push_back(progress->phase);
      }
      return std::move(*message);
    }
    frames_.clear();
    next_frame_ = 0;
    if (channel_->wants_write() && !channel_->flush().ok()) return std::nullopt;
    if (!channel_->receive(&frames_).ok() && frames_.empty()) return std::nullopt;
    if (!frames_.empty()) continue;
    pollfd p{channel_->fd(), static_cast<short>(channel_->wants_write() ? POLLIN | POLLOUT : POLLIN), 0};
    poll(&p, 1, 1000);
    if (monotonic_us() > give_up) FAIL("the worker says nothing");
  }
}

std::optional<ipc::FromWorker> WorkerClient::next() {
  for (;;) {
    auto message = next_of_any_kind();
    if (!message) return message;
    bool is_small_talk = std::holds_alternative<ipc::Hello>(*message) || std::holds_alternative<ipc::Progress>(*message) ||
                         std::holds_alternative<ipc::Heartbeat>(*message) || std::holds_alternative<ipc::Ready>(*message);
    if (!is_small_talk) return message;
  }
}

void WorkerClient::wait_ready() {
  while (!model) {
    auto message = next_of_any_kind();
    REQUIRE(message);
    if (auto* fatal = std::get_if<ipc::Fatal>(&*message)) FAIL(fatal->message);
  }
}

bool ClientRequest::is_finished() const {
  return std::all_of(choices.begin(), choices.end(),
                     [](const auto& c) { return c.second.finish != ipc::FinishReason::kNone; });
}

ipc::Submit ClientRequest::resume() const {
  ipc::Submit s = submit;
  s.choices.clear();
  for (const auto& [number, c] : choices) {
    if (c.finish == ipc::FinishReason::kNone) s.choices.push_back({number, c.tokens, c.text.size()});
  }
  s.n_prompt_logprobs_known = static_cast<uint32_t>(prompt_logprobs.size());
  return s;
}

void ClientRequest::take(const ipc::TokenEvent& event) {
  Choice& c = choices.at(event.choice);
  if (!event.error.empty()) FAIL(event.error);
  if (c.finish != ipc::FinishReason::kNone) FAIL("event after the end");
  if (event.token >= 0) {
    if (event.index != c.tokens.size()) FAIL("index " << event.index << ", expected " << c.tokens.size());
    c.tokens.push_back(event.token);
    if (event.logprob) c.logprobs.push_back(event.logprob->chosen.logprob);
  }
  if (event.n_released < c.n_released) FAIL("released tokens go back");
  c.n_released = event.n_released;
  c.text += event.text;
  c.finish = event.finish;
}

void ClientRequest::take(const ipc::PromptLogprobs& message) {
  if (message.first_index != prompt_logprobs.size()) FAIL("prompt log-probabilities are not continuous");
  for (const ipc::LogprobEntry& e : message.entries) prompt_logprobs.push_back(e.chosen.logprob);
}

std::vector<int32_t> tokenize(WorkerClient& worker, const std::string& text) {
  ipc::Prepare p;
  p.id = 1;
  p.text = text;
  worker.send(p);
  auto message = worker.next();
  REQUIRE(message);
  auto& reply = std::get<ipc::PrepareReply>(*message);
  INFO(reply.error);
  REQUIRE(reply.ok);
  return reply.ids;
}

}  // namespace tandem
