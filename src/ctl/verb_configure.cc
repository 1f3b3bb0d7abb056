// tandem configure: the two changes that are easy to get half right by hand. The address stands in systemd's socket and
// in server.listen; a key's hash goes into a file whose owner and mode matter.
#include <spawn.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <sstream>

#include "base/config.h"
#include "base/file_hash.h"
#include "base/file_io.h"
#include "base/hex.h"
#include "ctl/toml_edit.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

namespace {

constexpr const char* kConfig = "/etc/tandem/tandem.toml";
constexpr const char* kDropInFolder = "/etc/systemd/system/tandem.socket.d";

int fail(const Status& status) {
  std::fprintf(stderr, "tandem configure: %s\n", status.message().c_str());
  return 1;
}

Status run(std::vector<std::string> command) {
  std::vector<char*> argv;
  std::string whole;
  for (std::string& word : command) argv.push_back(word.data()), whole += (whole.empty() ? "" : " ") + word;
  argv.push_back(nullptr);
  pid_t pid = -1;
  if (int err = posix_spawnp(&pid, argv[0], nullptr, nullptr, argv.data(), environ); err != 0)
    return errno_status(err, "cannot run " + whole);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return ok_status();
  return unavailable(whole + " failed; see: systemctl status tandem.socket tandem.service");
}

bool has_systemd(const ConfigureOptions& o) { return o.root.empty() && access("/run/systemd/system", F_OK) == 0; }

Status make_folders(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) return errno_status(errno, "cannot create folder " + part);
    if (slash == std::string::npos) return ok_status();
  }
}

// Numeric ADDRESS:PORT; whether only this machine can reach it.
Result<bool> parse_listen(const std::string& listen) {
  size_t colon = listen.rfind(':');
  std::string host = colon == std::string::npos ? "" : listen.substr(0, colon), port = colon == std::string::npos ? "" : listen.substr(colon + 1);
  bool is_v6 = host.size() > 2 && host.front() == '[' && host.back() == ']';
  std::string bare = is_v6 ? host.substr(1, host.size() - 2) : host;
  constexpr const char* kHex = "0123456789abcdefABCDEF:.";
  bool ok = !bare.empty() && bare.find_first_not_of(is_v6 ? kHex : "0123456789.") == std::string::npos && !port.empty() && port.size() <= 5 &&
            port.find_first_not_of("0123456789") == std::string::npos && std::stoi(port) >= 1 && std::stoi(port) <= 65535;
  if (!ok)
    return invalid_argument("the address must be numeric with a port from 1 to 65535, as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080, got \"" +
                            listen + "\"");
  return bare.compare(0, 4, "127.") == 0 || bare == "::1";
}

std::string keys_path(const ConfigureOptions& o, const Config& config, bool is_admin) {
  const std::string& set = is_admin ? config.auth_admin_key_file : config.auth_user_keys_file;
  return o.root + (set.empty() ? is_admin ? "/etc/tandem/admin.key" : "/etc/tandem/keys" : set);
}

bool has_key(const std::string& path) {
  auto text = read_file(path);
  std::istringstream lines(text.ok() ? *text : "");
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line[0] != '#') return true;
  return false;
}

Status configure_listen(const ConfigureOptions& o, const Config& config) {
  CHECK_ASSIGN(bool is_loopback, parse_listen(o.listen));
  if (!is_loopback && !config.server_allow_unauthenticated && !has_key(keys_path(o, config, false)))
    return invalid_argument("other machines can reach " + o.listen +
                            ", and there is no API key: make one first with `tandem configure key NAME`, or set "
                            "server.allow_unauthenticated = true");
  std::string file = o.root + kConfig, folder = o.root + kDropInFolder;
  CHECK_ASSIGN(std::string text, read_file(file));
  CHECK_ASSIGN(const std::string edited, with_toml_key(text, file, "server", "listen", "\"" + o.listen + "\""));
  CHECK_OK(make_folders(folder));
  CHECK_OK(replace_file(folder + "/listen.conf",
                        "# Written by `tandem configure listen`, together with server.listen in " + std::string(kConfig) +
                            ".\n[Socket]\nListenStream=\nListenStream=" + o.listen + "\n",
                        0644, ""));
  CHECK_OK(replace_file(file, edited, 0644, ""));
  if (!has_systemd(o)) return ok_status();
  CHECK_OK(run({"systemctl", "daemon-reload"}));
  CHECK_OK(run({"systemctl", "stop", "tandem.socket", "tandem.service"}));
  return run({"systemctl", "start", "tandem.socket", "tandem.service"});
}

Result<std::string> new_key() {
  unsigned char bytes[24];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return internal_error("no random numbers");
  return "tdm-" + hex_of(bytes);
}

// Removes the line of that name; whether there was one.
bool without_name(std::string* text, const std::string& name) {
  std::istringstream lines(*text);
  std::string out;
  bool found = false;
  for (std::string line; std::getline(lines, line);) {
    bool is_it = line.compare(0, name.size() + 1, name + ":") == 0;
    found = found || is_it;
    if (!is_it) out += line + "\n";
  }
  *text = out;
  return found;
}

Status configure_key(const ConfigureOptions& o, const Config& config) {
  bool is_name = !o.key_name.empty() && o.key_name.size() <= 64 &&
                 o.key_name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (!is_name) return invalid_argument("a key's name must be 1 to 64 letters, digits, '.', '_' or '-', got \"" + o.key_name + "\"");
  std::string path = keys_path(o, config, o.is_admin);
  auto old = read_file(path);
  if (!old.ok() && old.status().code() != StatusCode::kNotFound) return old.status();
  std::string text = old.ok() ? *old : "# One key a line, as its SHA-256: name:sha256hex, then options; see tandem.toml, [auth].\n";
  bool was_there = without_name(&text, o.key_name);
  if (o.is_removal && !was_there) return not_found("no key " + o.key_name + " in " + path);
  std::string key;
  if (!o.is_removal) {
    CHECK_ASSIGN(key, new_key());
    text += o.key_name + ":" + sha256_of_text(key);
    for (const std::string& option : o.key_options) text += ":" + option;
    text += "\n";
  }
  CHECK_OK(replace_file(path, text, 0640, "tandem"));
  if (!o.is_removal) {
    std::printf("%s\n", key.c_str());
    std::fprintf(stderr, "%s key %s; it is shown this once: only its hash is kept in %s\n", was_there ? "new" : "first", o.key_name.c_str(), path.c_str());
  }
  if (has_systemd(o)) return run({"systemctl", "try-reload-or-restart", "tandem.service"});
  return ok_status();
}

}  // namespace

int verb_configure(const ConfigureOptions& o) {
  Config config;
  if (Status status = config_load_file(o.root + kConfig, &config); !status.ok()) return fail(status);
  Status status = o.listen.empty() ? configure_key(o, config) : configure_listen(o, config);
  return status.ok() ? 0 : fail(status);
}

}  // namespace tandem::ctl
