// tandemd: reads the configuration, opens the request log, starts the API and runs the supervisor's
// loop on the main thread until a signal ends it. SIGTERM and SIGINT drain, SIGHUP reloads. stdout
// gets one line, the address really bound; all else goes to stderr. Exit codes: 0 after a drain, 78
// bad configuration, 71 the system refuses something.
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "api/api_server.h"
#include "base/config.h"
#include "base/log.h"
#include "requestlog/request_log.h"
#include "supervisor/model_files.h"
#include "supervisor/sd_notify.h"
#include "supervisor/supervisor.h"

namespace tandem {
namespace {

constexpr int kExitConfig = 78;
constexpr int kExitSystem = 71;
constexpr const char* kDefaultConfig = "/etc/tandem/tandem.toml";
constexpr const char* kDefaultProfile = "/etc/tandem/profile.toml";
constexpr const char* kUsage =
    "tandemd [--config FILE] [--profile FILE] [--set section.key=value]... [--version] [--help]\n"
    "Serves the model of its configuration. Without --config, /etc/tandem/tandem.toml is read if "
    "it exists;\n"
    "without --profile, /etc/tandem/profile.toml. Order: defaults < profile < config < --set.\n";

struct Arguments {
  std::string config_file, profile_file;
  std::vector<std::string> assignments;
  bool is_version = false, is_help = false;
};

// "--name value" and "--name=value".
Status parse_arguments(int argc, char** argv, Arguments* out) {
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i], value;
    if (flag == "--version" || flag == "--help") {
      (flag == "--help" ? out->is_help : out->is_version) = true;
      continue;
    }
    size_t eq = flag.find('=');
    bool has_value = eq != std::string::npos;
    if (has_value) value = flag.substr(eq + 1), flag.resize(eq);
    if (flag != "--config" && flag != "--profile" && flag != "--set")
      return invalid_argument("unknown argument \"" + flag + "\"; see --help");
    if (!has_value) {
      if (++i == argc) return invalid_argument(flag + " needs a value");
      value = argv[i];
    }
    if (flag == "--config") out->config_file = value;
    if (flag == "--profile") out->profile_file = value;
    if (flag == "--set") out->assignments.push_back(value);
  }
  return ok_status();
}

bool exists(const char* path) { return access(path, F_OK) == 0; }

Status load_config(const Arguments& args, Config* config) {
  std::string profile = args.profile_file, file = args.config_file;
  if (profile.empty() && exists(kDefaultProfile)) profile = kDefaultProfile;
  if (file.empty() && exists(kDefaultConfig)) file = kDefaultConfig;
  if (!profile.empty()) CHECK_OK(config_load_file(profile, config));
  if (!file.empty()) CHECK_OK(config_load_file(file, config));
  for (const std::string& assignment : args.assignments) CHECK_OK(config_set(assignment, config));
  return config_validate(*config);
}

// A folder for us alone: it holds the request log.
Status make_folder(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), slash == std::string::npos ? 0700 : 0755) != 0 && errno != EEXIST)
      return errno_status(errno, "cannot create folder " + part);
    if (slash == std::string::npos) return ok_status();
  }
}

std::unique_ptr<RequestLog> open_log(const Config& config) {
  RequestLogOptions options;
  options.path =
      config.log_database.empty() ? config_state_dir(config) + "/requests.db" : config.log_database;
  options.keep_text = config.log_text;
  options.flush_ms = static_cast<int>(config.log_flush_ms);
  options.max_bytes = config.log_max_bytes;
  options.max_age_days = static_cast<int>(config.log_max_age_days);
  return RequestLog::open(options);
}

// Blocked in every thread started from here on; read from a descriptor by the loop.
UniqueFd take_signals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a pool file that may not grow is an error like any other
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, s);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  return UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

// Names of the keys that differ and are only read at a start.
std::string keys_for_next_start(const Config& before, const Config& after) {
  constexpr const char* kReloadable[] = {"log.level",
                                         "limits.max_queue",
                                         "limits.ageing_ms",
                                         "limits.max_prompt_tokens",
                                         "limits.timeout_ms",
                                         "limits.max_choices",
                                         "limits.max_stop_strings",
                                         "limits.max_stop_bytes",
                                         "degrade.enabled",
                                         "degrade.ladder_file",
                                         "workers.watchdog_ms",
                                         "workers.drain_timeout_ms",
                                         "server.slow_reader_timeout_ms"};
  std::istringstream old_lines(config_to_toml(before)), new_lines(config_to_toml(after));
  std::string section, old_line, new_line, names;
  while (std::getline(old_lines, old_line) && std::getline(new_lines, new_line)) {
    if (old_line[0] == '[') section = old_line.substr(1, old_line.size() - 2);
    if (old_line == new_line) continue;
    std::string name = section + "." + old_line.substr(0, old_line.find(' '));
    if (std::find(std::begin(kReloadable), std::end(kReloadable), name) == std::end(kReloadable))
      names += (names.empty() ? "" : " ") + name;
  }
  return names;
}

Status reload(const Arguments& args, const Config& started_with, Supervisor* supervisor,
              api::ApiServer* server, SdNotify* systemd) {
  systemd->reloading();
  Config config;
  Status status = load_config(args, &config);
  Result<Ladder> ladder = status.ok() ? load_ladder(config) : Result<Ladder>(status);
  status = ladder.status();
  if (!status.ok()) {
    log_error("reload refused, the old configuration stays", {{"reason", status.message()}});
  } else {
    LogLevel level = LogLevel::kInfo;
    if (log_parse_level(config.log_level, &level)) log_set_level(level);
    supervisor->reload(config, std::move(*ladder));
    server->reload_limits(config);
    log_info("reloaded", {});
    if (std::string names = keys_for_next_start(started_with, config); !names.empty())
      log_warn("changed keys wait for a restart of tandemd, those of a refused model are tried now",
               {{"keys", names}});
  }
  if (Status files = server->reload_files(); !files.ok()) {
    log_error("keys, deny list or certificate not reloaded, the old ones stay", {{"reason", files.message()}});
    if (status.ok()) status = files;
  }
  if (!status.ok())
    supervisor->note_fault("reload: " + status.message(), "what was in force before stays in force");
  systemd->ready();
  return status;
}

int fail(int code, const Status& status) {
  log_error("tandemd cannot start", {{"reason", status.message()}});
  SdNotify().failed(status.message());
  log_flush();
  return code;
}

int serve(const Arguments& args, const Config& config) {
  UniqueFd signals = take_signals();
  LogLevel level = LogLevel::kInfo;
  log_parse_level(config.log_level, &level);
  log_init("tandemd", level);
  auto model = find_model(config);
  if (!model.ok() && model.status().code() == StatusCode::kInvalidArgument)
    return fail(kExitConfig, model.status());
  if (Status status = make_folder(config_state_dir(config)); !status.ok())
    return fail(kExitSystem, status);
  if (Status status = make_folder(config_cache_dir(config)); !status.ok())
    log_warn("no cache folder", {{"reason", status.message()}});
  auto ladder = load_ladder(config);
  if (!ladder.ok()) return fail(kExitConfig, ladder.status());
  std::unique_ptr<RequestLog> log = open_log(config);
  Supervisor supervisor(config, log.get(), std::move(*ladder));
  api::ApiServer::Options listen;
  listen.listen_fd = inherited_socket();
  auto server = api::ApiServer::start(config, &supervisor, std::move(listen));
  if (!server.ok()) {
    bool is_config = server.status().code() == StatusCode::kInvalidArgument;
    return fail(is_config ? kExitConfig : kExitSystem, server.status());
  }
  std::printf("listening address=%s\n", (*server)->address().c_str());
  std::fflush(stdout);
  log_info("listening", {{"address", (*server)->address()}, {"version", TANDEM_VERSION}});
  SdNotify systemd;
  systemd.ready();
  Supervisor::LoopHooks hooks;
  hooks.signal_fd = signals.get();
  hooks.on_signal = [&] {
    signalfd_siginfo info;
    while (read(signals.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGHUP) {
        (void)reload(args, config, &supervisor, server->get(), &systemd).ok();  // it says so itself
      } else {
        systemd.stopping(config.workers_drain_timeout_ms);
        (*server)->hand_over();
        supervisor.drain();
      }
    }
  };
  hooks.on_reload = [&] { return reload(args, config, &supervisor, server->get(), &systemd); };
  hooks.on_turn = [&](const api::Readiness& readiness) {
    std::string text = readiness_name(readiness.state);
    if (!readiness.cause.empty()) text += ": " + readiness.cause;
    systemd.status(text);
    systemd.alive(monotonic_us());
  };
  supervisor.run(hooks);
  (*server)->stop();
  log.reset();  // writes what waits
  log_info("stopped", {});
  log_flush();
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::Arguments args;
  tandem::Config config;
  tandem::Status status = tandem::parse_arguments(argc, argv, &args);
  if (status.ok() && args.is_help) return std::fputs(tandem::kUsage, stdout), 0;
  if (status.ok() && args.is_version) return std::puts("tandemd " TANDEM_VERSION), 0;
  if (status.ok()) status = tandem::load_config(args, &config);
  if (!status.ok()) {
    std::fprintf(stderr, "<3>tandemd cannot start reason=\"%s\"\n", status.message().c_str());
    tandem::SdNotify().failed(status.message());
    return tandem::kExitConfig;
  }
  return tandem::serve(args, config);
}
