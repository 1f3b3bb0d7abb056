// tandem quantize: the worker writes into a file beside the target, which takes the target's name once it is whole and on
// disk. An interrupted run leaves nothing: the next one starts again.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/file_io.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

constexpr int kExitInterrupted = 130;

const char* unfinished_path = nullptr;  // what a signal's handler removes

void remove_and_leave(int) {
  unlink(unfinished_path);
  _exit(kExitInterrupted);  // the worker dies with its parent
}

// The file under way. Removed unless it was finished.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& target) : target_(target), path_(target + ".partial") {}
  ~UnfinishedFile() {
    if (!fd_.valid()) return;
    unlink(path_.c_str());
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_DFL);
    unfinished_path = nullptr;
  }

  Status open() {
    UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd.valid()) return errno_status(errno, "cannot write " + path_);
    // Another run may have finished, and given the file away, between our open and our lock.
    struct stat locked {}, named {};
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || fstat(fd.get(), &locked) != 0 || stat(path_.c_str(), &named) != 0 ||
        locked.st_ino != named.st_ino) {
      return Status(StatusCode::kFailedPrecondition, path_ + " is being written by another run; wait for it, or end it");
    }
    if (ftruncate(fd.get(), 0) != 0) return errno_status(errno, "cannot empty " + path_);
    fd_ = std::move(fd);
    unfinished_path = path_.c_str();
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, remove_and_leave);
    return {};
  }
  // Of the same file, for the worker.
  Result<UniqueFd> descriptor() const {
    UniqueFd copy(fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3));
    if (!copy.valid()) return errno_status(errno, "cannot hand over " + path_);
    return copy;
  }
  Status finish() {
    if (fsync(fd_.get()) != 0) return errno_status(errno, "cannot write " + path_ + " through to its disk");
    return rename_durably(path_, target_);
  }

 private:
  std::string target_, path_;
  UniqueFd fd_;
};

// The model must stay what it is while it is read, and nothing is replaced unasked.
Status check_target(const QuantizeOptions& o) {
  struct stat target {};
  if (stat(o.out.c_str(), &target) != 0) {
    if (errno == ENOENT) return {};
    return errno_status(errno, "cannot look at " + o.out);
  }
  if (!S_ISREG(target.st_mode)) return invalid_argument("--out " + o.out + " is no regular file; name a file");
  for (const std::string& part : model_parts(o.model)) {
    struct stat source {};
    if (stat(part.c_str(), &source) == 0 && source.st_dev == target.st_dev && source.st_ino == target.st_ino) {
      return invalid_argument("--out " + o.out + " is the model itself; name another file");
    }
  }
  if (!o.is_forced) return invalid_argument("--out " + o.out + " exists; name another file, or replace it with --force");
  return {};
}

Result<UniqueFd> open_calibration(const std::string& path) {
  auto text = open_file(path);
  if (text.ok()) return text;
  return Status(text.status().code(), "--calibration: " + text.status().message() + "; name a text file");
}

Result<int> quantize(const QuantizeOptions& o) {
  CHECK_OK(check_target(o));
  UniqueFd text;
  if (o.calibration_file) {
    CHECK_ASSIGN(text, open_calibration(*o.calibration_file));
  }
  UnfinishedFile file(o.out);
  CHECK_OK(file.open());
  ToolFiles files;
  files.model = o.model;
  files.text = std::move(text);
  CHECK_ASSIGN(files.output, file.descriptor());
  std::vector<std::string> arguments = {"--to", o.type, "--threads", std::to_string(o.threads)};
  if (files.text.valid()) {
    // Its name without folders: it is written into the file.
    for (const std::string& argument : {std::string("--calibration"), o.calibration_file->substr(o.calibration_file->rfind('/') + 1),
                                        std::string("--calibration-tokens"), std::to_string(o.calibration_tokens)}) {
      arguments.push_back(argument);
    }
  }
  if (o.json) arguments.push_back("--json");
  const int code = run_worker_tool("quantize", std::move(files), arguments);
  if (code == 0) CHECK_OK(file.finish());
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
