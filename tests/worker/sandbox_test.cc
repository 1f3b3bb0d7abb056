// A child process enters the sandbox and tries what it must not be able to do.
#include "worker/sandbox.h"

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace tandem {
namespace {

constexpr int kSkipped = 99;

// Runs `attempt` in a sandboxed child; its return value is the child's exit code.
template <typename F>
int in_sandbox(F attempt) {
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    auto state = enter_sandbox();
    if (!state.ok()) _exit(98);
    if (state->seccomp != "on") _exit(kSkipped);
    _exit(attempt());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}
template <typename F>
void check_in_sandbox(F attempt) {
  int code = in_sandbox(attempt);
  if (code == kSkipped) WARN("skipped: no seccomp here, or a sanitizer build");
  else CHECK(code == 0);
}

int refused(long result) { return result == -1 && (errno == EPERM || errno == EACCES) ? 0 : 1; }

}  // namespace

TEST_CASE("a sandboxed worker opens no file, no socket, starts no program") {
  check_in_sandbox([] { return refused(open("/etc/passwd", O_RDONLY)); });
  check_in_sandbox([] { return refused(open("/tmp/tandem_sandbox_test", O_WRONLY | O_CREAT, 0600)); });
  check_in_sandbox([] { return refused(openat(AT_FDCWD, "/proc/self/maps", O_RDONLY)); });
  check_in_sandbox([] { return refused(socket(AF_INET, SOCK_STREAM, 0)); });
  check_in_sandbox([] { return refused(socket(AF_UNIX, SOCK_STREAM, 0)); });
  check_in_sandbox([] {
    char name[] = "/bin/true";
    char* argv[] = {name, nullptr};
    return refused(execv(name, argv));
  });
  check_in_sandbox([] { return refused(unlink("/tmp/tandem_no_such_file")); });
  check_in_sandbox([] { return refused(kill(getppid(), 0)); });
}

TEST_CASE("what serving needs still works: descriptors, memory, threads, time") {
  int pipe_fds[2];
  REQUIRE(pipe(pipe_fds) == 0);
  check_in_sandbox([&] {
    if (write(pipe_fds[1], "x", 1) != 1) return 1;
    char c = 0;
    if (read(pipe_fds[0], &c, 1) != 1 || c != 'x') return 2;
    void* memory = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || madvise(memory, 1 << 20, MADV_DONTNEED) != 0) return 3;
    int answer = 0;
    std::thread thread([&] { answer = 42; });
    thread.join();
    if (answer != 42) return 4;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return 0;
  });
  close(pipe_fds[0]), close(pipe_fds[1]);
}

TEST_CASE("threads made inside are locked in too") {
  check_in_sandbox([] {
    int result = 1;
    std::thread thread([&] { result = refused(open("/etc/passwd", O_RDONLY)); });
    thread.join();
    return result;
  });
}

}  // namespace tandem
