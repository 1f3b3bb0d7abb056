// One running worker: its process (by pidfd) and its channel. Knows nothing of requests or
// restarts. Confined to the supervisor's loop thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "ipc/channel.h"
#include "ipc/codec.h"
#include "ipc/messages.h"
#include "supervisor/model_files.h"
#include "supervisor/weights_cache.h"

namespace tandem {

// How a worker ended. `cause` is a label of llm_worker_restarts_total.
struct WorkerEnd {
  std::string cause;          // crash killed watchdog internal device device-back config exit
  std::string detail;         // "signal 11 (SIGSEGV)", "exit code 70", …
  bool is_own_fault = false;  // counts against the requests it held (design.md 2)
};
WorkerEnd classify_end(int wait_status);

// What a worker is started for. The descriptors stay the caller's.
struct WorkerSpec {
  ipc::Role role = ipc::Role::kBoth;
  int number = 0;                  // among the workers of its role
  std::string cpus;                // "0-3,6"; empty: all that tandemd may use
  int device = -1;                 // runs there; -1: on the processor
  int pool_fd = -1;                // of its KV pool; -1: none that outlives it
  std::vector<int> lent_pool_fds;  // kDecode: the pools of the prefill workers, by their number
};

// What it reads, and the files of the same packed.
struct WorkerFiles {
  const OpenModel& model;
  const WeightsCache& cache;
  const OpenModel& lean;  // of weights.lean, or nothing
  const WeightsCache& lean_cache;
};

class WorkerProcess {
 public:
  // Starts the program with the channel as descriptor 3, the model's parts from 4 on, then
  // what `files` and `spec` have; nothing else is inherited. Its stdout goes to our stderr.
  static Result<std::unique_ptr<WorkerProcess>> spawn(const std::string& program,
                                                      const WorkerFiles& files,
                                                      const WorkerSpec& spec);
  ~WorkerProcess();  // SIGKILL if it still runs, then reaps

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  ipc::Channel& channel() { return channel_; }
  Status send(const ipc::ToWorker& message) { return channel_.send(ipc::encode(message)); }
  void kill_now();                  // SIGKILL; its end is reported by reap()
  std::optional<WorkerEnd> reap();  // set once the process has ended

 private:
  WorkerProcess(pid_t pid, UniqueFd pidfd, UniqueFd channel)
      : pid_(pid), pidfd_(std::move(pidfd)), channel_(std::move(channel)) {}
  pid_t pid_;
  UniqueFd pidfd_;
  ipc::Channel channel_;
  std::optional<WorkerEnd> end_;
};

// The worker program: workers.libexec_dir, beside this program, the build tree's ../worker,
// /usr/libexec/tandem. The message of a failure lists where it was looked for.
Result<std::string> find_worker_program(const Config& config, const char* name = "tandem-worker");

}  // namespace tandem
