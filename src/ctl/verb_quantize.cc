// tandem quantize: the worker writes into a file beside the target, which takes the target's name once it is whole and on
// disk. What an interrupted run leaves stays there for the next one to go on with; how far it came is the worker's to know.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/clock.h"
#include "base/file_io.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

constexpr int kExitInterrupted = 130, kExitRefused = 78;
constexpr int64_t kPatienceUs = 2'000'000;  // a worker dies a little after its parent, and keeps the lock so long

// The file under way.
struct Unfinished {
  std::string path, stays;  // `stays` is what is said when it does
  UniqueFd fd;
};
const Unfinished* unfinished = nullptr;  // for a signal's handler

// Such a file is of no use and goes.
bool is_empty(const Unfinished& file) {
  struct stat info {};
  return fstat(file.fd.get(), &info) == 0 && info.st_size == 0;
}

void leave(int) {  // calls only what a handler may
  if (is_empty(*unfinished)) {
    unlink(unfinished->path.c_str());
  } else {
    (void)!write(STDERR_FILENO, unfinished->stays.data(), unfinished->stays.size());
  }
  _exit(kExitInterrupted);  // the worker dies with its parent
}

void on_signals(sighandler_t handler) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, handler);
}

// Invalid: another run has it, or has finished it and given it away between our open and our lock.
Result<UniqueFd> open_locked(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd.valid()) return errno_status(errno, "cannot write " + path);
  struct stat locked {}, named {};
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || fstat(fd.get(), &locked) != 0 || stat(path.c_str(), &named) != 0 ||
      locked.st_ino != named.st_ino) {
    return UniqueFd();
  }
  return fd;
}

Result<UniqueFd> open_patiently(const std::string& path) {
  for (const int64_t end = monotonic_us() + kPatienceUs;; usleep(50'000)) {
    CHECK_ASSIGN(UniqueFd fd, open_locked(path));
    if (fd.valid()) return fd;
    if (monotonic_us() > end) {
      return Status(StatusCode::kFailedPrecondition, path + " is being written by another run; wait for it, or end it");
    }
  }
}

class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& target) : target_(target) {
    file_.path = target + ".partial";
    file_.stays = std::string(isatty(STDERR_FILENO) == 1 ? "\n" : "") + "tandem quantize: " + file_.path +
                  " stays: the same command goes on from what is on disk; to give up, remove that file\n";
  }
  ~UnfinishedFile() {
    on_signals(SIG_DFL);
    unfinished = nullptr;
    if (file_.fd.valid() && is_empty(file_)) unlink(file_.path.c_str());
  }

  // As an earlier run left it.
  Status open() {
    CHECK_ASSIGN(file_.fd, open_patiently(file_.path));
    unfinished = &file_;
    on_signals(leave);
    return {};
  }
  // Of the same file, for the worker.
  Result<UniqueFd> descriptor() const {
    UniqueFd copy(fcntl(file_.fd.get(), F_DUPFD_CLOEXEC, 3));
    if (!copy.valid()) return errno_status(errno, "cannot hand over " + file_.path);
    return copy;
  }
  void say_that_it_stays() const {
    if (!is_empty(file_)) std::fputs(file_.stays.c_str(), stderr);
  }
  Status finish() {
    if (fsync(file_.fd.get()) != 0) return errno_status(errno, "cannot write " + file_.path + " through to its disk");
    on_signals(SIG_DFL);
    CHECK_OK(rename_durably(file_.path, target_));
    file_.fd.reset();
    return {};
  }

 private:
  std::string target_;
  Unfinished file_;
};

// The file that has the target's name, unless it may be replaced; invalid: there is none. The model must stay what it is while it is read.
Result<UniqueFd> open_made(const QuantizeOptions& o) {
  struct stat target {};
  if (stat(o.out.c_str(), &target) != 0) {
    if (errno == ENOENT) return UniqueFd();
    return errno_status(errno, "cannot look at " + o.out);
  }
  if (!S_ISREG(target.st_mode)) return invalid_argument("--out " + o.out + " is no regular file; name a file");
  for (const std::string& part : model_parts(o.model)) {
    struct stat source {};
    if (stat(part.c_str(), &source) == 0 && source.st_dev == target.st_dev && source.st_ino == target.st_ino) {
      return invalid_argument("--out " + o.out + " is the model itself; name another file");
    }
  }
  return o.is_forced ? UniqueFd() : open_file(o.out);
}

Result<UniqueFd> open_calibration(const std::string& path) {
  auto text = open_file(path);
  if (text.ok()) return text;
  return Status(text.status().code(), "--calibration: " + text.status().message() + "; name a text file");
}

std::vector<std::string> tool_arguments(const QuantizeOptions& o) {
  std::vector<std::string> arguments = {"--to", o.type, "--threads", std::to_string(o.threads), "--out-name", o.out};
  if (o.calibration_file) {
    // Its name without folders: it is written into the file.
    for (const std::string& argument : {std::string("--calibration"), o.calibration_file->substr(o.calibration_file->rfind('/') + 1),
                                        std::string("--calibration-tokens"), std::to_string(o.calibration_tokens)}) {
      arguments.push_back(argument);
    }
  }
  if (o.json) arguments.push_back("--json");
  return arguments;
}

Result<int> quantize(const QuantizeOptions& o) {
  ToolFiles files;
  files.model = o.model;
  CHECK_ASSIGN(files.made, open_made(o));
  if (o.calibration_file) {
    CHECK_ASSIGN(files.text, open_calibration(*o.calibration_file));
  }
  if (files.made.valid()) return run_worker_tool("quantize", std::move(files), tool_arguments(o));
  UnfinishedFile file(o.out);
  CHECK_OK(file.open());
  CHECK_ASSIGN(files.output, file.descriptor());
  const int code = run_worker_tool("quantize", std::move(files), tool_arguments(o));
  if (code == 0) CHECK_OK(file.finish());
  if (code != 0 && code != kExitRefused) file.say_that_it_stays();
  return code;
}

}  // namespace

int verb_quantize(const QuantizeOptions& options) {
  const auto code = quantize(options);
  if (code.ok()) return *code;
  std::fprintf(stderr, "tandem quantize: %s\n", code.status().message().c_str());
  return 1;
}

}  // namespace tandem::ctl
