// tandem doctor: what of this machine the appliance relies on. Folders, port, keys, clock, device and the model's hash
// are looked at here, the processor and its kernels (and a model) in the worker's sandbox. Lines read
// "pass|warn|fail  what  found", then a remedy.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "base/config.h"
#include "ctl/board_profile.h"
#include "ctl/doctor_checks.h"
#include "ctl/http_client.h"
#include "ctl/json_read.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

// Returns whether it is a failure.
bool print(const DoctorLine& line) {
  std::printf("%-4s  %-24s %s\n", line.verdict, line.what.c_str(), line.found.c_str());
  if (!line.remedy.empty()) std::printf("      %-24s remedy: %s\n", "", line.remedy.c_str());
  std::fflush(stdout);
  return std::string_view(line.verdict) == "fail";
}

// Reads the configuration into *config, as far as it can be read.
DoctorLine check_configuration(const DoctorOptions& options, Config* config) {
  std::string file = options.config_file;
  if (file.empty() && access("/etc/tandem/tandem.toml", R_OK) == 0) file = "/etc/tandem/tandem.toml";
  Status status = file.empty() ? ok_status() : config_load_file(file, config);
  if (status.ok()) status = config_validate(*config);
  if (!status.ok()) return {"fail", "configuration", status.message(), "mend the file; each key stands in tandem.toml"};
  return {"pass", "configuration", file.empty() ? "no file: the defaults" : file, ""};
}

// The workers of the server that runs here, if one does: their roles, and what they lend each other.
void report_workers(const ServerOptions& server) {
  const auto answer = http_get(server, "/status.json");
  if (!answer.ok() || answer->status != 200) return;
  const JsonDocument status(answer->body);
  for (const JsonPart& w : status.list("workers")) {
    const std::string state = w.text("state").value_or("");
    const double used = w.number("pages_used").value_or(0), free = w.number("pages_free").value_or(0);
    const std::string found = fmt::format("{}, {:.0f} of {:.0f} pages used, {} lent, {} copied from others", state, used, used + free,
                                          w.count("pages_lent"), w.count("pages_imported"));
    const std::string what = fmt::format("worker {} {}", w.text("role").value_or(""), w.count("number"));
    const bool is_ready = state == "ready";
    print({is_ready ? "pass" : "warn", what, found,
           is_ready ? "" : "its cause: " + w.text("cause").value_or("not told") + "; see tandem status"});
  }
}

int propose() {
  const ProfileProposal p = propose_profile(read_board(""));
  std::printf("%s: %s\n", p.name.c_str(), p.why.c_str());
  std::printf("to use it: cp /usr/share/tandem/profiles/%s.toml /etc/tandem/profile.toml && systemctl restart tandem\n", p.name.c_str());
  return 0;
}

}  // namespace

int verb_doctor(const DoctorOptions& options) {
  if (options.wants_profile) return propose();
  Config config;
  bool has_failure = print(check_configuration(options, &config));
  if (!options.state_dir.empty()) {
    config.paths_state_dir = options.state_dir;
    config.paths_cache_dir = options.state_dir + "/cache";
  }
  const std::string model = options.model.empty() ? config.model_path : options.model;
  has_failure |= print(check_folder("state folder", config_state_dir(config)));
  has_failure |= print(check_folder("cache folder", config_cache_dir(config)));
  has_failure |= print(check_port(config));
  for (const DoctorLine& line : check_key_files(config)) has_failure |= print(line);
  has_failure |= print(check_clock());
  has_failure |= print(check_device(""));
  if (!model.empty()) has_failure |= print(check_model_hash(model, config_cache_dir(config) + "/model_digests"));
  if (config_has_lean_file(config)) has_failure |= print(check_lean_file(config.weights_lean));
  report_workers(options.server);
  auto text = text_descriptor(config_to_toml(config));  // the memory that these settings ask for
  const int code = run_worker_tool("doctor", {options.model, text.ok() ? std::move(*text) : UniqueFd()},
                                   {"--threads", std::to_string(options.threads), "--force-isa", options.force_isa});
  return code == 0 && has_failure ? 1 : code;
}

}  // namespace tandem::ctl
