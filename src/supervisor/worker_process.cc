#include "supervisor/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

namespace tandem {
namespace {

constexpr int kFirstFd = 3;  // the channel's, then all others
// The kernel's out-of-memory killer is to take a worker (which is resumed) before the supervisor.
constexpr const char* kOomScoreAdjust = "500";

struct SpawnSetup {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
};

// A duplicate above all target numbers, so that no dup2 in the child overwrites a source.
Result<UniqueFd> lift(int fd, int first_free) {
  UniqueFd lifted(fcntl(fd, F_DUPFD_CLOEXEC, first_free));
  if (!lifted.valid()) return errno_status(errno, "cannot duplicate a descriptor for a worker");
  return lifted;
}

// A group of its own, so that Ctrl-C at a terminal reaches the supervisor, which drains; no blocked
// signals.
void set_attributes(posix_spawnattr_t* attributes) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(attributes, &none);
  posix_spawnattr_setsigdefault(attributes, &all);
  posix_spawnattr_setpgroup(attributes, 0);
  posix_spawnattr_setflags(attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
}

bool is_executable(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

std::string own_folder() {
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  if (n <= 0) return ".";
  std::string exe(path, static_cast<size_t>(n));
  return exe.substr(0, exe.rfind('/'));
}

}  // namespace

WorkerEnd classify_end(int status) {
  if (WIFSIGNALED(status)) {
    int sig = WTERMSIG(status);
    const char* name = sigabbrev_np(sig);
    std::string detail = "signal " + std::to_string(sig) + " (SIG" + (name ? name : "?") + ")";
    for (int fault : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
      if (sig == fault) return {"crash", detail, true};
    }
    return {"killed", detail, false};
  }
  int code = WEXITSTATUS(status);
  std::string detail = "exit code " + std::to_string(code);
  if (code == 70) return {"internal", detail, true};
  if (code == 75) return {"device", detail, false};
  if (code == 78) return {"config", detail, false};
  return {"exit", detail, false};
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::spawn(const std::string& program,
                                                            const WorkerFiles& files,
                                                            const WorkerSpec& spec) {
  CHECK_ASSIGN(auto pair, ipc::channel_pair());
  SpawnSetup setup;
  set_attributes(&setup.attributes);
  // Flag and the descriptors that go with it, in the order of their numbers in the child.
  std::vector<std::pair<std::string, std::vector<int>>> passed = {{"--channel-fd", {pair.second.get()}},
                                                                  {"--model-fds", {}},
                                                                  {"--lent-pool-fds", spec.lent_pool_fds}};
  for (const UniqueFd& part : files.model.fds) passed[1].second.push_back(part.get());
  for (auto [flag, fd] : {std::pair("--cache-fd", files.cache.existing.get()), std::pair("--new-cache-fd", files.cache.fresh.get()),
                          std::pair("--pool-fd", spec.pool_fd), std::pair("--lean-cache-fd", files.lean_cache.existing.get()),
                          std::pair("--new-lean-cache-fd", files.lean_cache.fresh.get())}) {
    if (fd >= 0) passed.push_back({flag, {fd}});
  }
  passed.push_back({"--lean-fds", {}});
  for (const UniqueFd& part : files.lean.fds) passed.back().second.push_back(part.get());
  int first_free = kFirstFd;
  for (const auto& [flag, fds] : passed) first_free += static_cast<int>(fds.size());
  posix_spawn_file_actions_addopen(&setup.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&setup.actions, STDERR_FILENO, STDOUT_FILENO);
  std::vector<UniqueFd> sources;
  std::vector<std::string> arguments = {program, "--role", ipc::role_name(spec.role)};
  int target = kFirstFd;
  for (const auto& [flag, fds] : passed) {
    std::string numbers;
    for (int fd : fds) {
      CHECK_ASSIGN(UniqueFd lifted, lift(fd, first_free));
      posix_spawn_file_actions_adddup2(&setup.actions, lifted.get(), target);
      sources.push_back(std::move(lifted));
      numbers += (numbers.empty() ? "" : ",") + std::to_string(target++);
    }
    if (!fds.empty()) arguments.insert(arguments.end(), {flag, numbers});
  }
  if (!spec.cpus.empty()) arguments.insert(arguments.end(), {"--cpus", spec.cpus});
  if (spec.device >= 0) arguments.insert(arguments.end(), {"--device", std::to_string(spec.device)});
  // Sockets of clients must not live on in a worker, whoever opened them without CLOEXEC.
  posix_spawn_file_actions_addclosefrom_np(&setup.actions, first_free);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  int err = posix_spawn(&pid, program.c_str(), &setup.actions, &setup.attributes, argv.data(), environ);
  if (err != 0) return errno_status(err, "cannot start worker " + program);
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd.valid()) {
    err = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return errno_status(err, "cannot watch worker " + program);
  }
  std::ofstream("/proc/" + std::to_string(pid) + "/oom_score_adj") << kOomScoreAdjust;
  return std::unique_ptr<WorkerProcess>(
      new WorkerProcess(pid, std::move(pidfd), std::move(pair.first)));
}

WorkerProcess::~WorkerProcess() {
  if (end_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void WorkerProcess::kill_now() {
  if (!end_) kill(pid_, SIGKILL);
}

std::optional<WorkerEnd> WorkerProcess::reap() {
  if (end_) return end_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == pid_) end_ = classify_end(status);
  return end_;
}

Result<std::string> find_worker_program(const Config& config, const char* name) {
  std::string here = own_folder(), tried;
  std::vector<std::string> folders = {here, here + "/../worker", "/usr/libexec/tandem"};
  if (!config.workers_libexec_dir.empty()) folders = {config.workers_libexec_dir};
  for (const std::string& folder : folders) {
    std::string path = folder + "/" + name;
    if (is_executable(path)) return path;
    tried += (tried.empty() ? "" : ", ") + path;
  }
  return not_found(std::string(name) + " not found; looked for " + tried + "; set workers.libexec_dir");
}

}  // namespace tandem
