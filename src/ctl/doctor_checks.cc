#include "ctl/doctor_checks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/clock.h"
#include "base/file_hash.h"
#include "base/file_io.h"
#include "base/file_stamp.h"
#include "ctl/http_client.h"
#include "ctl/tool_process.h"

namespace tandem::ctl {

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kFailBytes = 0.1 * kGiB;  // not even the request log and its WAL
constexpr double kWarnBytes = 1.0 * kGiB;
constexpr int kLeastDriver = 580;                       // CUDA 13
constexpr int64_t kLeastUtcUs = 1'767'225'600'000'000;  // 2026-01-01: this software is not older

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

// 0, or errno of binding "host:port" as tandemd would.
int try_bind(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  const auto port = static_cast<uint16_t>(std::atoi(listen.c_str() + (colon == std::string::npos ? listen.size() : colon + 1)));
  if (host.size() > 1 && host[0] == '[') host = host.substr(1, host.size() - 2);
  sockaddr_storage address{};
  socklen_t size = sizeof(sockaddr_in);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET, v4->sin_port = htons(port);
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6, v6->sin6_port = htons(port), size = sizeof(sockaddr_in6);
  } else {
    return EINVAL;
  }
  const UniqueFd fd(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 ? 0 : errno;
}

DoctorLine check_key_file(const char* what, const std::string& path, bool is_configured) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    if (!is_configured) return {"pass", what, "no " + path + ": none needed on loopback", ""};
    return {"fail", what, fmt::format("{}: {}", path, strerror(errno)), "create the file, or take the key out of tandem.toml"};
  }
  if (access(path.c_str(), R_OK) != 0)
    return {"warn", what, fmt::format("{} is not readable for user id {}", path, geteuid()),
            "run doctor as the service's user; the file should be 0640 root:tandem"};
  if ((info.st_mode & (S_IROTH | S_IWOTH)) != 0)
    return {"warn", what, fmt::format("{} has mode {:04o}: every user may read or change it", path, info.st_mode & 07777),
            "chmod 0640 " + path};
  return {"pass", what, fmt::format("{}, mode {:04o}", path, info.st_mode & 07777), ""};
}

}  // namespace

DoctorLine check_folder(const std::string& what, const std::string& folder) {
  const std::string there = existing_part(folder);
  struct stat info {};
  if (stat(there.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
    return {"fail", what, there + " is no folder", "remove it, or name another folder with --state"};
  if (access(there.c_str(), W_OK | X_OK) != 0)
    return {"fail", what, fmt::format("{} is not writable for user id {}", there, geteuid()),
            fmt::format("chown or chmod {}, or name another folder with --state", there)};
  struct statvfs disk {};
  if (statvfs(there.c_str(), &disk) != 0)
    return {"warn", what, there + ": its free space is not known", "look at it with df " + there};
  const double free_bytes = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  const std::string found =
      fmt::format("{} writable, {:.1f} GiB free{}", folder, free_bytes / kGiB, there == folder ? "" : " (not yet made)");
  if (free_bytes < kFailBytes) return {"fail", what, found, "free some space: the request log needs 0.3 GiB"};
  if (free_bytes < kWarnBytes) return {"warn", what, found, "free some space: less than 1 GiB is left"};
  return {"pass", what, found, ""};
}

DoctorLine check_port(const Config& config) {
  const std::string& listen = config.server_listen;
  const int error = try_bind(listen);
  if (error == 0) return {"pass", "port", listen + " is free", ""};
  if (error == EINVAL)
    return {"fail", "port", "server.listen is \"" + listen + "\"", "write it as address:port, as in 127.0.0.1:8080"};
  if (error == EADDRINUSE) {
    const auto answer = http_get({"http://" + listen, ""}, "/health");
    if (answer.ok() && answer->body == R"({"status":"ok"})") return {"pass", "port", listen + " is held by a running Tandem", ""};
    return {"fail", "port", listen + " is held by another program", "find it with ss -ltnp, or change server.listen"};
  }
  return {"fail", "port", fmt::format("{} cannot be bound: {}", listen, strerror(error)),
          error == EACCES ? "ports below 1024 need CAP_NET_BIND_SERVICE: take a higher one in server.listen"
                          : "name an address of this machine in server.listen"};
}

std::vector<DoctorLine> check_key_files(const Config& config) {
  auto or_default = [](const std::string& path, const char* fallback) { return path.empty() ? std::string(fallback) : path; };
  return {check_key_file("user keys", or_default(config.auth_user_keys_file, "/etc/tandem/keys"), !config.auth_user_keys_file.empty()),
          check_key_file("admin key", or_default(config.auth_admin_key_file, "/etc/tandem/admin.key"),
                         !config.auth_admin_key_file.empty())};
}

bool has_nvidia_card(const std::string& root) {
  const std::string folder = root + "/sys/bus/pci/devices";
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(dir)) {
    const std::string device = folder + "/" + entry->d_name;
    found |= first_line(device + "/vendor") == "0x10de" && first_line(device + "/class").value_or("").rfind("0x03", 0) == 0;
  }
  closedir(dir);
  return found;
}

DoctorLine check_device(const std::string& root) {
  const std::string driver = first_line(root + "/sys/module/nvidia/version").value_or("");
  if (!has_nvidia_card(root) && driver.empty()) return {"pass", "graphics device", "none; the processor does all the work", ""};
  if (driver.empty())
    return {"warn", "graphics device", "an NVIDIA card without a driver; the processor does all the work",
            fmt::format("install the NVIDIA driver, {} or newer, to decode on the card", kLeastDriver)};
  if (std::atoi(driver.c_str()) < kLeastDriver)
    return {"warn", "graphics device", "NVIDIA driver " + driver + " is too old; the processor does all the work",
            fmt::format("install the NVIDIA driver, {} or newer", kLeastDriver)};
  return {"pass", "graphics device", "NVIDIA driver " + driver, ""};
}

DoctorLine check_clock(int64_t now_us, bool is_synchronized) {
  const std::string now = format_utc(now_us);
  if (now_us < kLeastUtcUs)
    return {"fail", "clock", now + " is in the past: certificates and log times will be wrong", "set it: timedatectl set-ntp true, or date -s"};
  if (!is_synchronized)
    return {"warn", "clock", now + ", not synchronized: times in the request log may be wrong",
            "timedatectl set-ntp true, if there is a network; serving doesn't need it"};
  return {"pass", "clock", now + ", synchronized", ""};
}

DoctorLine check_clock() {
  timex state{};
  const int answer = adjtimex(&state);
  return check_clock(utc_us(), answer >= 0 && answer != TIME_ERROR && (state.status & STA_UNSYNC) == 0);
}

DoctorLine check_model_hash(const std::string& model, const std::string& memory_path) {
  auto fd = open_file(model);
  if (!fd.ok()) return {"fail", "model file", fd.status().message(), "name a GGUF file that this user can read"};
  struct stat st {};
  (void)fstat(fd->get(), &st);
  const std::string stamp = file_stamp(st) + ";";  // as the server names the state of a model's only part
  std::string hash = find_sha256(memory_path, stamp);
  if (hash.empty()) {
    auto found = sha256_of_files({fd->get()});
    if (!found.ok()) return {"fail", "model file", found.status().message(), "check the disk: dmesg, smartctl"};
    hash = *found;
    remember_sha256(memory_path, stamp, hash);
  }
  std::ifstream beside(model + ".sha256");
  std::string wanted;
  if (!(beside >> wanted)) return {"pass", "model file", "sha256 " + hash + " (no .sha256 beside it to compare with)", ""};
  if (wanted != hash)
    return {"fail", "model file", "sha256 " + hash + ", but " + model + ".sha256 says " + wanted.substr(0, 64), "fetch the file again"};
  return {"pass", "model file", "sha256 " + hash + ", as " + model + ".sha256 says", ""};
}

DoctorLine check_lean_file(const std::string& path) {
  struct stat st {};
  int error = stat(path.c_str(), &st) != 0 ? errno : access(path.c_str(), R_OK) != 0 ? errno : 0;
  if (error == 0 && !S_ISREG(st.st_mode)) error = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
  if (error == 0) return {"pass", "lean weights", fmt::format("{}, {} bytes", path, st.st_size), ""};
  return {"warn", "lean weights", path + ": " + strerror(error), "correct weights.lean: without a file there the rung weights-4bit is skipped"};
}

}  // namespace tandem::ctl
