// tandem bundle: one .tar.gz for support. From a running server as much as it gives; without one, what the files and
// this machine tell. Never keys, prompts or completions.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/clock.h"
#include "base/config.h"
#include "base/file_io.h"
#include "base/tar_archive.h"
#include "ctl/http_client.h"
#include "ctl/log_source.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

constexpr int kRows = 1000;

struct Parts {
  std::string folder;
  std::vector<ArchiveEntry> files;
  std::string notes;  // what is missing, and why
  void add(const std::string& name, std::string content) { files.push_back({folder + name, std::move(content)}); }
  void miss(const std::string& name, const std::string& why) { notes += name + ": " + why + "\n"; }
};

bool add_from_server(const BundleOptions& options, const char* path, const char* name, Parts* out) {
  const auto answer = http_get(options.server, path);
  if (!answer.ok()) return out->miss(name, answer.status().message()), false;
  if (answer->status != 200) return out->miss(name, describe_refusal(*answer)), false;
  out->add(name, answer->body);
  return true;
}

// As in force at the server, else as the file says; comments (where a secret may stand) are left out.
void add_config(const BundleOptions& options, Parts* out) {
  if (add_from_server(options, "/admin/config", "config.toml", out)) return;
  const std::string file = options.config_file.empty() ? "/etc/tandem/tandem.toml" : options.config_file;
  Config config;
  if (const Status status = config_load_file(file, &config); !status.ok()) return out->miss("config.toml", status.message());
  out->add("config.toml", config_to_toml(config));
}

void add_rows(const BundleOptions& options, Parts* out) {
  ipc::RecordQuery query;
  query.limit = kRows;
  auto rows = rows_from_server(options.server, query);
  if (!rows.ok()) {
    Config config;
    if (!options.config_file.empty()) (void)config_load_file(options.config_file, &config).ok();  // told by add_config
    if (!options.state_dir.empty()) config.paths_state_dir = options.state_dir;
    rows = rows_from_database(
        config.log_database.empty() ? config_state_dir(config) + "/requests.db" : config.log_database, query);
  }
  if (!rows.ok()) return out->miss("requests.json", rows.status().message());
  for (ipc::RequestRecord& row : *rows) row.prompt_text.clear(), row.completion_text.clear();
  out->add("requests.json", rows_to_json(*rows) + "\n");
}

void add_doctor(const BundleOptions& options, Parts* out) {
  std::vector<std::string> arguments = {"doctor"};
  auto pass = [&](const char* flag, const std::string& value) {
    if (!value.empty()) arguments.push_back(flag), arguments.push_back(value);
  };
  pass("--model", options.model);
  pass("--state", options.state_dir);
  pass("--config", options.config_file);
  const auto output = capture_program("/proc/self/exe", arguments);
  if (!output.ok()) return out->miss("doctor.txt", output.status().message());
  out->add("doctor.txt", *output);
}

Status write_file(const std::string& path, const std::string& bytes) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return errno_status(errno, "cannot create " + path);
  const Status status = write_all(fd.get(), bytes, path);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

Result<std::string> make_bundle(const BundleOptions& options) {
  std::string stamp = format_utc(utc_us()).substr(0, 19);  // 2026-11-29T12:34:56
  std::erase_if(stamp, [](char c) { return c == '-' || c == ':'; });
  Parts parts;
  parts.folder = "tandem-bundle-" + stamp + "/";
  add_from_server(options, "/status.json", "status.json", &parts);
  add_from_server(options, "/metrics", "metrics.txt", &parts);
  add_config(options, &parts);
  add_rows(options, &parts);
  add_doctor(options, &parts);
  if (!parts.notes.empty()) parts.add("missing.txt", parts.notes);
  parts.add("README.txt", "Support bundle of tandem " TANDEM_VERSION ", made " + stamp +
                              "Z.\nNo keys, prompts or completions are in it. Faults and the last 15 minutes are in status.json.\n");
  CHECK_ASSIGN(const std::string bytes, make_tar_gz(parts.files, utc_us() / 1000000));
  const std::string path = options.output.empty() ? "tandem-bundle-" + stamp + ".tar.gz" : options.output;
  CHECK_OK(write_file(path, bytes));
  if (!parts.notes.empty()) std::fprintf(stderr, "tandem bundle: not in it:\n%s", parts.notes.c_str());
  return path;
}

}  // namespace

int verb_bundle(const BundleOptions& options) {
  const auto path = make_bundle(options);
  if (!path.ok()) {
    std::fprintf(stderr, "tandem bundle: %s\n", path.status().message().c_str());
    return 1;
  }
  std::puts(path->c_str());
  return 0;
}

}  // namespace tandem::ctl
