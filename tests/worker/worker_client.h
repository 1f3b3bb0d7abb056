// The supervisor's end of a real tandem-worker process, with just enough memory to resume what a killed one
// left behind: tokens, bytes released and log-probabilities of each choice.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ipc/channel.h"
#include "ipc/messages.h"

namespace tandem {

class WorkerClient {
 public:
  // Starts the worker on the model file and configures it, with a memory file for its KV pool if one is given.
  // Fails the test when it cannot.
  explicit WorkerClient(const std::string& model_path, const std::string& config_toml = "", int pool_fd = -1);
  ~WorkerClient();  // SIGKILL

  void wait_ready();
  // The next message other than Hello, Progress and Heartbeat; none when the worker closed its end.
  std::optional<ipc::FromWorker> next();
  std::optional<ipc::FromWorker> next_of_any_kind();
  void send(const ipc::ToWorker& message);
  void send_raw(std::string frame);
  void kill(int signal_number);
  void close_channel() { channel_.reset(); }
  int wait_exit();  // exit code, or 128 + signal
  pid_t pid() const { return pid_; }

  std::optional<ipc::ModelInfo> model;
  ipc::Heartbeat last_heartbeat;
  std::vector<std::string> phases;  // of Progress, repetitions left out

 private:
  const int pool_fd_;
  pid_t pid_ = -1;
  bool is_reaped_ = false;
  std::optional<ipc::Channel> channel_;
  std::vector<std::string> frames_;
  size_t next_frame_ = 0;
};

// One request as the supervisor remembers it.
struct ClientRequest {
  ipc::Submit submit;  // of the first dispatch
  struct Choice {
    std::vector<int32_t> tokens;
    std::string text;
    std::vector<float> logprobs;
    uint32_t n_released = 0;
    ipc::FinishReason finish = ipc::FinishReason::kNone;
    bool operator==(const Choice&) const = default;
  };
  std::map<uint32_t, Choice> choices;
  std::vector<float> prompt_logprobs;  // entries, position 0 included
  bool is_finished() const;
  ipc::Submit resume() const;
  void take(const ipc::TokenEvent& event);  // fails the test when it contradicts what is known
  void take(const ipc::PromptLogprobs& message);
};

std::vector<int32_t> tokenize(WorkerClient& worker, const std::string& text);

}  // namespace tandem
