#include "ctl/toml_edit.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "base/file_io.h"
#include "base/unique_fd.h"

namespace tandem::ctl {

namespace {

std::string trimmed(const std::string& line) {
  size_t first = line.find_first_not_of(" \t");
  return first == std::string::npos ? "" : line.substr(first);
}

// "name = ..." or "#name = ...".
bool is_key_line(const std::string& line, const std::string& name) {
  std::string text = trimmed(line);
  if (!text.empty() && text[0] == '#') text = trimmed(text.substr(1));
  if (text.compare(0, name.size(), name) != 0) return false;
  std::string rest = trimmed(text.substr(name.size()));
  return !rest.empty() && rest[0] == '=';
}

}  // namespace

std::string with_toml_key(const std::string& text, const std::string& section, const std::string& name, const std::string& value) {
  std::istringstream in(text);
  std::string out, line;
  const std::string header = "[" + section + "]", fresh = name + " = " + value + "\n";
  bool is_inside = false, is_done = false;
  size_t behind_header = std::string::npos;
  while (std::getline(in, line)) {
    std::string start = trimmed(line);
    if (!start.empty() && start[0] == '[') is_inside = start.compare(0, header.size(), header) == 0;
    if (is_inside && !is_done && is_key_line(line, name)) {
      out += fresh;
      is_done = true;
      continue;
    }
    out += line + "\n";
    if (is_inside && behind_header == std::string::npos) behind_header = out.size();
  }
  if (is_done) return out;
  if (behind_header == std::string::npos) return out + header + "\n" + fresh;
  return out.insert(behind_header, fresh);
}

Status replace_file(const std::string& path, const std::string& text, unsigned mode, const std::string& group) {
  struct stat st;
  uid_t uid = 0;
  gid_t gid = 0;
  if (stat(path.c_str(), &st) == 0) {
    mode = st.st_mode & 07777, uid = st.st_uid, gid = st.st_gid;
  } else if (const struct group* entry = group.empty() ? nullptr : getgrnam(group.c_str())) {
    gid = entry->gr_gid;
  }
  std::string fresh = path + ".new";
  unlink(fresh.c_str());
  UniqueFd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return errno_status(errno, "cannot create " + fresh);
  Status status = write_all(fd.get(), text, path);
  if (status.ok() && ((geteuid() == 0 && fchown(fd.get(), uid, gid) != 0) || fchmod(fd.get(), mode) != 0 ||
                      fsync(fd.get()) != 0))
    status = errno_status(errno, "cannot write " + path);
  if (status.ok()) status = rename_durably(fresh, path);
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

}  // namespace tandem::ctl
