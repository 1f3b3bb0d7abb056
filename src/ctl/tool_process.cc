#include "ctl/tool_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "base/file_io.h"
#include "ctl/programs.h"

extern char** environ;

namespace tandem::ctl {

namespace {

constexpr int kFirstFd = 4;  // 3 is the channel's number in a serving worker
constexpr size_t kMaxStdinBytes = size_t{1} << 30;

// Descriptors to hand over and the arguments that name them.
struct Handover {
  std::vector<UniqueFd> fds;  // fds[i] becomes kFirstFd + i
  std::vector<std::string> arguments;
};

Status add_model(const std::string& model, Handover* out) {
  std::string numbers, names;
  for (const std::string& path : model_parts(model)) {
    CHECK_ASSIGN(UniqueFd fd, open_file(path));
    const char* comma = numbers.empty() ? "" : ",";
    numbers += comma + std::to_string(kFirstFd + static_cast<int>(out->fds.size()));
    std::string name = path.substr(path.rfind('/') + 1);
    std::replace(name.begin(), name.end(), ',',
                 '_');  // the list's separator; the name is for messages only
    names += comma + name;
    out->fds.push_back(std::move(fd));
  }
  for (const std::string& argument :
       {std::string("--model-fds"), numbers, std::string("--model-names"), names}) {
    out->arguments.push_back(argument);
  }
  return {};
}

void add_file(const char* name, UniqueFd file, Handover* out) {
  if (!file.valid()) return;
  out->arguments.push_back(name);
  out->arguments.push_back(std::to_string(kFirstFd + static_cast<int>(out->fds.size())));
  out->fds.push_back(std::move(file));
}

Result<pid_t> spawn(const std::string& program, const std::vector<std::string>& arguments,
                    const std::vector<UniqueFd>& fds) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const int first_free = kFirstFd + static_cast<int>(fds.size());
  std::vector<UniqueFd> lifted;  // above the targets, so that no dup2 overwrites a source
  for (size_t i = 0; i < fds.size(); ++i) {
    lifted.emplace_back(fcntl(fds[i].get(), F_DUPFD_CLOEXEC, first_free));
    posix_spawn_file_actions_adddup2(&actions, lifted.back().get(), kFirstFd + static_cast<int>(i));
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, first_free);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int err = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (err != 0) return errno_status(err, "cannot start " + program);
  return pid;
}

Result<int> run(const std::string& tool, ToolFiles files,
                const std::vector<std::string>& arguments) {
  Handover handover;
  if (!files.model.empty()) CHECK_OK(add_model(files.model, &handover));
  add_file("--text-fd", std::move(files.text), &handover);
  add_file("--out-fd", std::move(files.output), &handover);
  add_file("--made-fd", std::move(files.made), &handover);
  CHECK_ASSIGN(const std::string program, find_worker());
  std::vector<std::string> argv = {program, "--tool", tool};
  argv.insert(argv.end(), handover.arguments.begin(), handover.arguments.end());
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  std::fflush(stdout);
  CHECK_ASSIGN(const pid_t pid, spawn(program, argv, handover.fds));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return errno_status(errno, "cannot wait for tandem-worker");
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  return Status(StatusCode::kInternal, fmt::format("tandem-worker was ended by signal {} ({})",
                                                   signal, strsignal(signal)));
}

Result<std::string> read_all(int fd) {
  if (lseek(fd, 0, SEEK_SET) != 0) return errno_status(errno, "cannot rewind a memory file");
  std::string text;
  char buffer[65536];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) != 0;) {
    if (n < 0 && errno != EINTR) return errno_status(errno, "cannot read a memory file");
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

}  // namespace

Result<std::string> capture_program(const std::string& program, const std::vector<std::string>& arguments) {
  const UniqueFd out(memfd_create("output", MFD_CLOEXEC));
  if (!out.valid()) return errno_status(errno, "cannot make a memory file");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.get(), STDERR_FILENO);
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int err = posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (err != 0) return errno_status(err, "cannot start " + program);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return read_all(out.get());
}

std::vector<std::string> model_parts(const std::string& path) {
  constexpr size_t kSuffix = sizeof("-00001-of-00002.gguf") - 1;
  int first = 0, n = 0, end = 0;
  if (path.size() <= kSuffix ||
      std::sscanf(path.c_str() + path.size() - kSuffix, "-%5d-of-%5d.gguf%n", &first, &n, &end) !=
          2 ||
      end != static_cast<int>(kSuffix) || first != 1 || n < 2) {
    return {path};
  }
  std::vector<std::string> parts;
  for (int i = 1; i <= n; ++i) {
    parts.push_back(
        fmt::format("{}-{:05}-of-{:05}.gguf", path.substr(0, path.size() - kSuffix), i, n));
  }
  return parts;
}

Result<UniqueFd> open_file(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "cannot open " + path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return errno_status(errno, "cannot look at " + path);
  if (S_ISDIR(info.st_mode)) return invalid_argument(path + " is a directory; name a file");
  return fd;
}

Result<UniqueFd> text_descriptor(const std::string& text) {
  UniqueFd fd(memfd_create("text", MFD_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, "cannot make a memory file");
  CHECK_OK(write_all(fd.get(), text, "a memory file"));
  if (lseek(fd.get(), 0, SEEK_SET) != 0) return errno_status(errno, "cannot rewind a memory file");
  return fd;
}

Result<std::string> read_stdin() {
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
    if (n == 0) return text;
    if (n < 0 && errno != EINTR) return errno_status(errno, "cannot read stdin");
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxStdinBytes)
      return invalid_argument("stdin has more than 1 GiB; use a shorter text");
  }
}

int run_worker_tool(const std::string& tool, ToolFiles files,
                    const std::vector<std::string>& arguments) {
  auto code = run(tool, std::move(files), arguments);
  if (code.ok()) return *code;
  std::fprintf(stderr, "tandem %s: %s\n", tool.c_str(), code.status().message().c_str());
  return 1;
}

}  // namespace tandem::ctl
