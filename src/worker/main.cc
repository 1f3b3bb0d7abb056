// tandem-worker: started by tandemd to serve (`--role both --channel-fd 3 --model-fds 4,5
// [--cache-fd 6] [--new-cache-fd 7] [--pool-fd 8] [--lent-pool-fds 9,10] [--cpus 0-3]
// [--device 0] [--lean-fds 11] [--lean-cache-fd 12] [--new-lean-cache-fd 13]`), to tell whether a device is there (`--probe-device 0`), or by tandem in
// tool mode (`--tool NAME ...`, see tool.h). Opens no path: its files come as open descriptors.
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/cpu_list.h"
#include "base/log.h"
#include "gpu/gpu_backend.h"
#include "worker/sandbox.h"
#include "worker/tool.h"
#include "worker/worker.h"

namespace {

constexpr int kExitUsage = 2;

int usage(const std::string& reason) {
  std::fprintf(stderr,
               "tandem-worker: %s\n"
               "usage: tandem-worker --role both|prefill|decode --channel-fd N --model-fds N[,N...]\n"
               "                     [--cache-fd N] [--new-cache-fd N] [--pool-fd N] [--lent-pool-fds N[,N...]] [--cpus LIST]\n"
               "                     [--device N] [--lean-fds N[,N...]] [--lean-cache-fd N] [--new-lean-cache-fd N]\n"
               "       tandem-worker --probe-device N\n"
               "       tandem-worker --tool NAME [arguments]\n"
               "It is started by tandemd and tandem, not by hand.\n",
               reason.c_str());
  return kExitUsage;
}

bool parse_fds(const std::string& text, std::vector<int>* fds) {
  for (size_t begin = 0; begin <= text.size();) {
    size_t comma = std::min(text.find(',', begin), text.size());
    std::string item = text.substr(begin, comma - begin);
    char* end = nullptr;
    long fd = std::strtol(item.c_str(), &end, 10);
    if (item.empty() || *end != 0 || fd < 0 || fd > 1 << 20) return false;
    fds->push_back(static_cast<int>(fd));
    begin = comma + 1;
  }
  return true;
}

// Before the first thread: all of them inherit it, and the cores that remain are those counted later.
tandem::Status use_cpus(const std::string& list) {
  auto cpus = tandem::parse_cpu_list(list);
  if (!cpus.ok()) return cpus.status();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : *cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0)
    return tandem::errno_status(errno, "cannot run on processors " + list);
  return tandem::ok_status();
}

// 0: it is there, 75: it is not, and the line says what is missing.
int probe_device(const std::string& number) {
  constexpr int kExitDevice = 75;
  std::vector<int> index;
  if (!parse_fds(number, &index) || index.size() != 1) return usage("--probe-device needs the number of a device");
  auto gpu = tandem::open_gpu(index[0]);
  if (!gpu.ok()) {
    std::printf("%s\n", gpu.status().message().c_str());
    return kExitDevice;
  }
  std::printf("%s, sm_%d, driver %s, %lld MiB of %lld free\n", gpu->name.c_str(), gpu->sm, gpu->driver.c_str(),
              static_cast<long long>(gpu->free_bytes >> 20), static_cast<long long>(gpu->total_bytes >> 20));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() == 1 && args[0] == "--version") {
    std::printf("tandem-worker %s\n", TANDEM_VERSION);
    return 0;
  }
  if (args.size() == 2 && args[0] == "--probe-device") return probe_device(args[1]);
  if (args.size() >= 2 && args[0] == "--tool")
    return tandem::run_tool(args[1], {args.begin() + 2, args.end()});
  tandem::WorkerOptions options;
  std::string role;
  for (size_t i = 0; i < args.size(); i += 2) {
    if (i + 1 == args.size()) return usage(args[i] + " needs a value");
    std::vector<int> fds;
    if (args[i] == "--role") {
      role = args[i + 1];
    } else if (args[i] == "--channel-fd" && parse_fds(args[i + 1], &fds) && fds.size() == 1) {
      options.channel_fd = fds[0];
    } else if (args[i] == "--model-fds" && parse_fds(args[i + 1], &fds)) {
      options.model_fds = fds;
    } else if (args[i] == "--cache-fd" && parse_fds(args[i + 1], &fds) && fds.size() == 1) {
      options.cache_fd = fds[0];
    } else if (args[i] == "--new-cache-fd" && parse_fds(args[i + 1], &fds) && fds.size() == 1) {
      options.new_cache_fd = fds[0];
    } else if (args[i] == "--lean-fds" && parse_fds(args[i + 1], &fds)) {
      options.lean_fds = fds;
    } else if (args[i] == "--lean-cache-fd" && parse_fds(args[i + 1], &fds) && fds.size() == 1) {
      options.lean_cache_fd = fds[0];
    } else if (args[i] == "--new-lean-cache-fd" && parse_fds(args[i + 1], &fds) && fds.size() == 1) {
      options.new_lean_cache_fd = fds[0];
    } else if (args[i] == "--pool-fd" && parse_fds(args[i + 1], &fds) && fds.size() == 1) {
      options.pool_fd = fds[0];
    } else if (args[i] == "--device" && parse_fds(args[i + 1], &fds) && fds.size() == 1) {
      options.device = fds[0];
    } else if (args[i] == "--lent-pool-fds" && parse_fds(args[i + 1], &fds)) {
      options.lent_pool_fds = fds;
    } else if (args[i] == "--cpus") {
      if (tandem::Status status = use_cpus(args[i + 1]); !status.ok()) return usage("--cpus: " + status.message());
    } else {
      return usage("cannot use " + args[i] + " " + args[i + 1]);
    }
  }
  auto parsed_role = tandem::ipc::parse_role(role);
  if (!parsed_role) return usage("--role must be both, prefill or decode, got \"" + role + "\"");
  options.role = *parsed_role;
  if (options.channel_fd < 0 || options.model_fds.empty()) return usage("--channel-fd and --model-fds are needed");
  tandem::harden_process();
  // Ctrl-C at a terminal and systemd's stop reach the supervisor, which decides what becomes of us.
  // SIGXFSZ: a file that may not grow is an error of write() like any other.
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
  int exit_code = tandem::run_worker(options);
  tandem::log_flush();
  return exit_code;
}
