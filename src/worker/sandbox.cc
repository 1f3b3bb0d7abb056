#include "worker/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <memory>

namespace tandem {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitizerBuild = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool kIsSanitizerBuild = true;
#else
constexpr bool kIsSanitizerBuild = false;
#endif
#else
constexpr bool kIsSanitizerBuild = false;
#endif

// All a worker needs once its files are open: memory, threads, time, its descriptors, an orderly death.
constexpr int kAllowed[] = {
    SCMP_SYS(read), SCMP_SYS(write), SCMP_SYS(readv), SCMP_SYS(writev), SCMP_SYS(pread64), SCMP_SYS(preadv),
    SCMP_SYS(close), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(lseek), SCMP_SYS(fcntl),
    SCMP_SYS(fadvise64), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mprotect), SCMP_SYS(mremap),
    SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(mincore), SCMP_SYS(mlock), SCMP_SYS(munlock), SCMP_SYS(msync),
    SCMP_SYS(mbind), SCMP_SYS(get_mempolicy), SCMP_SYS(set_mempolicy), SCMP_SYS(futex), SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_setaffinity), SCMP_SYS(sched_getparam),
    SCMP_SYS(sched_getscheduler), SCMP_SYS(getcpu), SCMP_SYS(clone), SCMP_SYS(clone3), SCMP_SYS(rseq),
    SCMP_SYS(set_robust_list), SCMP_SYS(set_tid_address), SCMP_SYS(membarrier), SCMP_SYS(exit),
    SCMP_SYS(exit_group), SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack), SCMP_SYS(gettid), SCMP_SYS(getpid), SCMP_SYS(getppid), SCMP_SYS(tgkill),
    SCMP_SYS(getrandom), SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep), SCMP_SYS(gettimeofday), SCMP_SYS(poll), SCMP_SYS(ppoll), SCMP_SYS(eventfd2),
    SCMP_SYS(recvfrom), SCMP_SYS(sendto), SCMP_SYS(recvmsg), SCMP_SYS(sendmsg), SCMP_SYS(shutdown),
    SCMP_SYS(prlimit64), SCMP_SYS(getrlimit), SCMP_SYS(getrusage), SCMP_SYS(sysinfo), SCMP_SYS(uname),
    SCMP_SYS(times), SCMP_SYS(restart_syscall), SCMP_SYS(fsync),
    // The file that `tandem quantize` writes: room for it, rows at their places, what lasts of it, its end.
    SCMP_SYS(fallocate), SCMP_SYS(fstatfs), SCMP_SYS(pwrite64), SCMP_SYS(fdatasync), SCMP_SYS(ftruncate),
};

// The kernel's struct landlock_ruleset_attr, with the fields of later kernels than our headers'.
struct RulesetAttr {
  uint64_t handled_access_fs = 0;
  uint64_t handled_access_net = 0;  // from ABI 4
};

// Every right that Landlock of this ABI can deny.
uint64_t all_fs_rights(int abi) {
  int n_bits = abi >= 5 ? 16 : abi >= 3 ? 15 : abi == 2 ? 14 : 13;
  return (uint64_t{1} << n_bits) - 1;
}

// What the driver may open again once the device is in use. Untested on a device.
constexpr const char* kDeviceNodes[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidia1",
                                        "/dev/nvidia2", "/dev/nvidia3", "/dev/nvhost-ctrl", "/dev/nvmap", "/proc/driver/nvidia"};
constexpr int kAllowedWithDevice[] = {SCMP_SYS(ioctl), SCMP_SYS(openat), SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getdents64),
                                      SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(eventfd), SCMP_SYS(mlock2)};

struct PathRule {  // the kernel's struct landlock_path_beneath_attr
  uint64_t allowed_access;
  int32_t parent_fd;
} __attribute__((packed));

void allow_device_nodes(long ruleset) {
  constexpr uint64_t kReadWrite = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE;
  constexpr uint64_t kIoctlDevice = uint64_t{1} << 15;  // from ABI 5, not in our headers
  const long abi = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  for (const char* path : kDeviceNodes) {
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) continue;  // not on this machine
    PathRule rule{kReadWrite | (abi >= 5 ? kIoctlDevice : 0), fd};
    syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(fd);
  }
}

Result<std::string> enter_landlock(bool has_device) {
  long abi = syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  if (abi < 0) {
    if (errno == ENOSYS) return std::string("not in this kernel");
    if (errno == EOPNOTSUPP) return std::string("switched off in this kernel");
    return std::string("not available: ") + std::strerror(errno);
  }
  RulesetAttr attr;
  attr.handled_access_fs = all_fs_rights(static_cast<int>(abi));
  size_t size = sizeof attr.handled_access_fs;
  if (abi >= 4) attr.handled_access_net = 3, size = sizeof attr;  // bind and connect over TCP
  long ruleset = syscall(SYS_landlock_create_ruleset, &attr, size, 0);
  if (ruleset < 0) return errno_status(errno, "cannot make a Landlock ruleset");
  if (has_device) allow_device_nodes(ruleset);
  long result = syscall(SYS_landlock_restrict_self, ruleset, 0);  // everything else is denied
  int err = errno;
  close(static_cast<int>(ruleset));
  if (result != 0) return errno_status(err, "cannot enter Landlock");
  return "abi " + std::to_string(abi);
}

Result<std::string> enter_seccomp(bool has_device) {
  std::unique_ptr<void, decltype(&seccomp_release)> filter(seccomp_init(SCMP_ACT_ERRNO(EPERM)), seccomp_release);
  if (!filter) return internal_error("cannot make a seccomp filter");
  // Else every refusal of the kernel reads as ECANCELED, also that of a kernel (or qemu-user) without seccomp.
  seccomp_attr_set(filter.get(), SCMP_FLTATR_API_SYSRAWRC, 1);
  for (int number : kAllowed) {
    if (int err = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, 0); err != 0)
      return errno_status(-err, "cannot allow system call " + std::to_string(number));
  }
  for (int number : kAllowedWithDevice) {
    // A call that this architecture has not is no call to allow.
    if (has_device && number >= 0) (void)seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, 0);
  }
  // Thread names and names of mappings, nothing else of prctl.
  for (uint64_t option : {static_cast<uint64_t>(PR_SET_NAME), uint64_t{0x53564d41}}) {
    seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1, SCMP_A0(SCMP_CMP_EQ, option));
  }
  // A thread of ours may step back behind the others.
  seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(setpriority), 2, SCMP_A0(SCMP_CMP_EQ, PRIO_PROCESS),
                   SCMP_A1(SCMP_CMP_EQ, 0));
  int err = seccomp_load(filter.get());
  if (err == -EINVAL || err == -ENOSYS) return std::string("not in this kernel");
  if (err != 0) return errno_status(-err, "cannot load the seccomp filter");
  return std::string("on");
}

}  // namespace

void harden_process() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

Result<SandboxState> enter_sandbox(bool has_device) {
  if (kIsSanitizerBuild) return SandboxState{"off: sanitizer build", "off: sanitizer build"};
  SandboxState state;
  CHECK_ASSIGN(state.landlock, enter_landlock(has_device));
  CHECK_ASSIGN(state.seccomp, enter_seccomp(has_device));
  return state;
}

}  // namespace tandem
