// tandem doctor: what of this machine the appliance relies on. The folders are looked at here, the
// processor and its kernels (and a model) in the worker's sandbox. Lines read "pass|warn|fail  what
// found", then a remedy.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "ctl/http_client.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kFailBytes = 0.1 * kGiB;  // not even the request log and its WAL
constexpr double kWarnBytes = 1.0 * kGiB;

// Returns whether it is a failure.
bool report(const char* verdict, const std::string& what, const std::string& found,
            const std::string& remedy = "") {
  std::printf("%-4s  %-24s %s\n", verdict, what.c_str(), found.c_str());
  if (!remedy.empty()) std::printf("      %-24s remedy: %s\n", "", remedy.c_str());
  return std::string(verdict) == "fail";
}

// The folder, or the nearest one above it that is there: serving makes the rest.
std::string existing_part(std::string path) {
  struct stat info {};
  while (path.size() > 1 && stat(path.c_str(), &info) != 0) {
    const size_t slash = path.rfind('/');
    path = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
    if (path == ".") break;
  }
  return path;
}

bool check_folder(const std::string& what, const std::string& folder) {
  const std::string there = existing_part(folder);
  struct stat info {};
  if (stat(there.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return report("fail", what, there + " is no folder",
                  "remove it, or name another folder with --state");
  }
  if (access(there.c_str(), W_OK | X_OK) != 0) {
    return report("fail", what, fmt::format("{} is not writable for user id {}", there, geteuid()),
                  fmt::format("chown or chmod {}, or name another folder with --state", there));
  }
  struct statvfs disk {};
  if (statvfs(there.c_str(), &disk) != 0)
    return report("warn", what, there + ": its free space is not known");
  const double free_bytes = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  const std::string found = fmt::format("{} writable, {:.1f} GiB free{}", folder, free_bytes / kGiB,
                                        there == folder ? "" : " (not yet made)");
  if (free_bytes < kFailBytes)
    return report("fail", what, found, "free some space: the request log needs 0.3 GiB");
  if (free_bytes < kWarnBytes)
    return report("warn", what, found, "free some space: less than 1 GiB is left");
  return report("pass", what, found);
}

bool check_folders(const DoctorOptions& options, Config* out) {
  Config& config = *out;
  const std::string file =
      options.config_file.empty() && access("/etc/tandem/tandem.toml", R_OK) == 0
          ? "/etc/tandem/tandem.toml"
          : options.config_file;
  if (!file.empty()) {
    if (const Status status = config_load_file(file, &config); !status.ok()) {
      return report("fail", "configuration", status.message(),
                    "mend the file; each key stands in tandem.toml");
    }
    if (const Status status = config_validate(config); !status.ok()) {
      return report("fail", "configuration", status.message(),
                    "mend the file; each key stands in tandem.toml");
    }
    report("pass", "configuration", file);
  }
  if (!options.state_dir.empty()) {
    config.paths_state_dir = options.state_dir;
    config.paths_cache_dir = options.state_dir + "/cache";
  }
  const bool state_fails = check_folder("state folder", config_state_dir(config));
  return check_folder("cache folder", config_cache_dir(config)) || state_fails;
}

// The workers of the server that runs here, if one does: their roles, and what they lend each other.
void report_workers(const ServerOptions& server) {
  const auto answer = http_get(server, "/status.json");
  if (!answer.ok() || answer->status != 200) return;
  const nlohmann::json status = nlohmann::json::parse(answer->body, nullptr, false);
  if (!status.is_object() || !status.contains("workers")) return;
  for (const auto& w : status["workers"]) {
    const std::string state = w.value("state", "");
    const std::string found = fmt::format("{}, {} of {} pages used, {} lent, {} copied from others", state,
                                          w.value("pages_used", 0), w.value("pages_used", 0) + w.value("pages_free", 0),
                                          w.value("pages_lent", 0), w.value("pages_imported", 0));
    const std::string what = fmt::format("worker {} {}", w.value("role", ""), w.value("number", 0));
    if (state == "ready") report("pass", what, found);
    else report("warn", what, found, w.value("cause", ""));
  }
}

}  // namespace

int verb_doctor(const DoctorOptions& options) {
  Config config;
  const bool folders_fail = check_folders(options, &config);
  report_workers(options.server);
  auto text = text_descriptor(config_to_toml(config));  // the memory that these settings ask for
  const int code = run_worker_tool(
      "doctor", {options.model, text.ok() ? std::move(*text) : UniqueFd()},
      {"--threads", std::to_string(options.threads), "--force-isa", options.force_isa});
  return code == 0 && folders_fail ? 1 : code;
}

}  // namespace tandem::ctl
