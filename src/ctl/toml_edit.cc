#include "ctl/toml_edit.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <sstream>
#include <tuple>
#include <vector>

#include "base/file_io.h"
#include "base/toml_rows.h"
#include "base/unique_fd.h"

namespace tandem::ctl {

namespace {

std::string trimmed(const std::string& line) {
  size_t first = line.find_first_not_of(" \t");
  return first == std::string::npos ? "" : line.substr(first);
}

// "#name = …", with any blanks.
bool is_commented_key(const std::string& line, const std::string& name) {
  std::string text = trimmed(line);
  if (text.empty() || text[0] != '#') return false;
  text = trimmed(text.substr(1));
  if (text.compare(0, name.size(), name) != 0) return false;
  const std::string rest = trimmed(text.substr(name.size()));
  return !rest.empty() && rest[0] == '=';
}

// Without the key, in an order of their own: what an edit must leave as it is.
std::vector<TomlRow> others(std::vector<TomlRow> rows, const std::string& section, const std::string& name) {
  rows.erase(std::remove_if(rows.begin(), rows.end(), [&](const TomlRow& r) { return r.table == section && r.key == name; }), rows.end());
  std::sort(rows.begin(), rows.end(), [](const TomlRow& a, const TomlRow& b) {
    return std::tie(a.table, a.index, a.key) < std::tie(b.table, b.index, b.key);
  });
  return rows;
}

bool are_equal(const std::vector<TomlRow>& a, const std::vector<TomlRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const TomlRow& x, const TomlRow& y) {
    return x.table == y.table && x.index == y.index && x.key == y.key && x.value == y.value;
  });
}

// Line `line` (from 0) is the key's, or a new one goes in before it; no line: the file has no such section.
struct Place {
  std::optional<size_t> line;
  bool is_key_line = false;
};

Place place_of_key(const std::vector<TomlRow>& rows, const std::vector<std::string>& lines, const std::string& section,
                   const std::string& name) {
  for (const TomlRow& row : rows)
    if (row.table == section && row.key == name) return {static_cast<size_t>(row.line) - 1, true};
  const std::string header = "[" + section + "]";
  bool is_inside = false;
  Place behind_header;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string start = trimmed(lines[i]);
    if (!start.empty() && start[0] == '[') {
      is_inside = start.compare(0, header.size(), header) == 0;
      if (is_inside) behind_header.line = i + 1;
    } else if (is_inside && is_commented_key(lines[i], name)) {
      return {i, true};
    }
  }
  return behind_header;
}

}  // namespace

Result<std::string> with_toml_key(const std::string& text, const std::string& file, const std::string& section, const std::string& name,
                                  const std::string& value) {
  CHECK_ASSIGN(const std::vector<TomlRow> before, read_toml_rows(text, file));
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  const std::string fresh = name + " = " + value;
  const Place place = place_of_key(before, lines, section, name);
  if (!place.line)
    lines.insert(lines.end(), {"[" + section + "]", fresh});
  else if (place.is_key_line)
    lines[*place.line] = fresh;
  else
    lines.insert(lines.begin() + static_cast<ptrdiff_t>(*place.line), fresh);
  std::string edited;
  for (const std::string& line : lines) edited += line + "\n";
  // TOML can be written in many ways: what came out is read again.
  const auto after = read_toml_rows(edited, file);
  const auto wanted = read_toml_rows("[" + section + "]\n" + fresh, file);
  const bool is_set = after.ok() && wanted.ok() && std::any_of(after->begin(), after->end(), [&](const TomlRow& r) {
    return r.table == section && r.key == name && r.value == wanted->front().value;
  });
  if (!is_set || !are_equal(others(before, section, name), others(*after, section, name)))
    return invalid_argument(file + " is written in a way that cannot be changed from here; set " + fresh + " under [" + section +
                            "] in it yourself");
  return edited;
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
