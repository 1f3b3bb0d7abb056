#include "supervisor/model_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/file_stamp.h"

namespace tandem {
namespace {

constexpr const char* kSuffix = ".gguf";
constexpr size_t kSplitChars = 20;  // "-00001-of-00003.gguf"
constexpr int kMaxParts = 999;      // more would only be a way to run out of descriptors

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Part number and count from a split name; false for any other name.
bool parse_split(const std::string& path, int* part, int* count) {
  if (path.size() < kSplitChars) return false;
  std::string tail = path.substr(path.size() - kSplitChars);
  for (size_t i : {1, 2, 3, 4, 5, 10, 11, 12, 13, 14}) {
    if (tail[i] < '0' || tail[i] > '9') return false;
  }
  if (tail[0] != '-' || tail.compare(6, 4, "-of-") != 0 || tail.compare(15, 5, kSuffix) != 0)
    return false;
  *part = std::stoi(tail.substr(1, 5));
  *count = std::stoi(tail.substr(10, 5));
  return *part >= 1 && *part <= *count && *count <= kMaxParts;
}

std::string user_name() {
  if (passwd* entry = getpwuid(geteuid())) return entry->pw_name;
  return "uid " + std::to_string(geteuid());
}

// Which step of the way to `path` refuses: "needs x on /home" or "needs r on the file itself".
std::string missing_permission(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    std::string folder = path.substr(0, slash);
    if (faccessat(AT_FDCWD, folder.c_str(), X_OK, AT_EACCESS) != 0 && errno == EACCES)
      return "missing permission x (search) on the folder " + folder;
  }
  return "missing permission r (read) on the file";
}

Result<UniqueFd> open_part(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // never waits on a FIFO
  if (!fd.valid()) {
    int err = errno;
    if (err == EACCES || err == EPERM) {
      return Status(StatusCode::kPermissionDenied, "cannot read model " + path + ": user " +
                                                       user_name() + " lacks access, " +
                                                       missing_permission(path));
    }
    return errno_status(err, "cannot open model " + path);
  }
  struct stat st;
  if (fstat(fd.get(), &st) != 0) return errno_status(errno, "cannot examine model " + path);
  if (!S_ISREG(st.st_mode)) {
    return invalid_argument("model " + path + " is " +
                            (S_ISDIR(st.st_mode) ? "a folder" : "not a regular file") +
                            "; a GGUF file is needed");
  }
  return fd;
}

// Models of a folder: single files and first parts, sorted.
Result<std::vector<std::string>> models_in(const std::string& folder) {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(folder.c_str()), closedir);
  if (!dir) return errno_status(errno, "cannot list models in " + folder);
  std::vector<std::string> found;
  while (dirent* entry = readdir(dir.get())) {
    std::string name = entry->d_name;
    int part = 1, count = 1;
    if (!ends_with(name, kSuffix) || name[0] == '.') continue;
    if (parse_split(name, &part, &count) && part != 1) continue;
    found.push_back(folder + "/" + name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// What `tandem model default` chose: the link `default` names a file beside it. Empty: nothing was chosen.
std::string chosen_model(const std::string& folder) {
  char name[256];
  ssize_t n = readlink((folder + "/default").c_str(), name, sizeof name);
  std::string chosen(name, n > 0 ? static_cast<size_t>(n) : 0);
  return chosen.empty() || chosen.find('/') != std::string::npos ? "" : folder + "/" + chosen;
}

}  // namespace

Result<std::string> find_model(const Config& config) {
  if (!config.model_path.empty()) return config.model_path;
  std::string folder = config_state_dir(config) + "/models";
  if (std::string chosen = chosen_model(folder); !chosen.empty()) return chosen;
  auto found = models_in(folder);
  if (!found.ok() && found.status().code() != StatusCode::kNotFound) return found.status();
  if (!found.ok() || found->empty())
    return not_found("no model: tandem model add FILE, set model.path, or put one .gguf file into " + folder);
  if (found->size() == 1) return found->front();
  std::string names;
  for (const std::string& path : *found)
    names += (names.empty() ? "" : ", ") + path.substr(folder.size() + 1);
  return invalid_argument("model.path is empty and " + folder + " holds " +
                          std::to_string(found->size()) + " models (" + names +
                          "); choose one: tandem model default NAME, or model.path");
}

std::vector<std::string> model_parts(const std::string& path) {
  int part = 0, count = 0;
  if (!parse_split(path, &part, &count)) return {path};
  std::string stem = path.substr(0, path.size() - kSplitChars);
  std::vector<std::string> parts;
  for (int i = 1; i <= count; ++i) {
    char tail[32];
    std::snprintf(tail, sizeof tail, "-%05d-of-%05d.gguf", i, count);
    parts.push_back(stem + tail);
  }
  return parts;
}

Result<OpenModel> open_model(const std::string& path) {
  OpenModel model;
  for (const std::string& part : model_parts(path)) {
    CHECK_ASSIGN(UniqueFd fd, open_part(part));
    model.fds.push_back(std::move(fd));
    model.paths.push_back(part);
  }
  return model;
}

std::string served_model_name(const Config& config, const std::string& path) {
  if (!config.model_name.empty()) return config.model_name;
  std::string name = path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
  int part = 0, count = 0;
  if (parse_split(name, &part, &count)) return name.substr(0, name.size() - kSplitChars);
  if (ends_with(name, kSuffix)) name.resize(name.size() - std::strlen(kSuffix));
  return name;
}

std::string model_stamp(const std::string& path) {
  std::string stamp;
  for (const std::string& part : model_parts(path)) {
    struct stat st;
    if (stat(part.c_str(), &st) != 0) {
      stamp += "-;";
      continue;
    }
    stamp += file_stamp(st) + ";";
  }
  return stamp;
}

int64_t model_mtime_s(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 ? st.st_mtim.tv_sec : 0;
}

}  // namespace tandem
