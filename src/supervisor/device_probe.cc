#include "supervisor/device_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace tandem {
namespace {
constexpr int64_t kPatienceUs = 30'000'000;  // a driver takes seconds to wake a card
}

DeviceProbe::~DeviceProbe() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Status DeviceProbe::start(const std::string& program, int device, int64_t now_us) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return errno_status(errno, "cannot make a pipe");
  output_ = UniqueFd(ends[0]);
  UniqueFd input(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  std::string flag = "--probe-device", number = std::to_string(device), path = program;
  char* argv[] = {path.data(), flag.data(), number.data(), nullptr};
  const int err = posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (err != 0) {
    pid_ = -1;
    return errno_status(err, "cannot start " + program);
  }
  start_us_ = now_us;
  return ok_status();
}

std::optional<DeviceProbe::Answer> DeviceProbe::poll(int64_t now_us) {
  if (pid_ <= 0) return std::nullopt;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) {
    if (now_us - start_us_ < kPatienceUs) return std::nullopt;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    return Answer{false, "the device does not answer"};
  }
  pid_ = -1;
  char text[512];
  const ssize_t n = read(output_.get(), text, sizeof text);
  Answer answer{WIFEXITED(status) && WEXITSTATUS(status) == 0, n > 0 ? std::string(text, static_cast<size_t>(n)) : ""};
  while (!answer.text.empty() && answer.text.back() == '\n') answer.text.pop_back();
  return answer;
}

}  // namespace tandem
