// A folder for one test, file sizes in it, and records to write.
#pragma once

#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/clock.h"
#include "requestlog/request_log.h"
#include "tests/temp_folder.h"

namespace tandem::testing {

class LogFolder {
 public:
  ~LogFolder() {
    if (is_mounted_) umount2(folder_.path.c_str(), MNT_DETACH);
  }
  // Puts a tmpfs of so many bytes here. False where mounting is not allowed.
  bool mount_tmpfs(const std::string& size) {
    is_mounted_ = mount("tmpfs", folder_.path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
    return is_mounted_;
  }
  bool set_read_only(bool read_only) {
    return mount("", folder_.path.c_str(), "", read_only ? MS_REMOUNT | MS_RDONLY : MS_REMOUNT, nullptr) == 0;
  }
  std::string path(const std::string& name = "requests.db") const { return folder_.at(name); }
  // Database and WAL together.
  int64_t bytes() const { return size_of(path()) + size_of(path("requests.db-wal")); }
  static int64_t size_of(const std::string& file) {
    struct stat info {};
    return stat(file.c_str(), &info) == 0 ? info.st_size : 0;
  }
  int count(const std::string& part) const {
    int n = 0;
    for (const auto& e : std::filesystem::directory_iterator(folder_.path))
      n += e.path().filename().string().find(part) != std::string::npos;
    return n;
  }
  RequestLogOptions options() const {
    RequestLogOptions o;
    o.path = path();
    o.flush_ms = 20;
    o.reopen_ms = 50;
    return o;
  }

 private:
  TempFolder folder_;
  bool is_mounted_ = false;
};

inline ipc::RequestRecord record(int i, size_t text_bytes = 0) {
  ipc::RequestRecord r;
  r.id = "req_" + std::to_string(i);
  static const int64_t kBegin = utc_us();
  r.received_us = kBegin + i;
  r.finished_us = r.received_us + 5;
  r.client = i % 2 ? "odd" : "even";
  r.status = i % 3 ? "stop" : "failed";
  r.prompt_text = std::string(text_bytes, 'p');
  return r;
}

// First column of the first row of `sql`, as text, over a connection of its own.
inline std::string ask(const std::string& path, const std::string& sql) {
  sqlite3* db = nullptr;
  std::string answer;
  sqlite3_open(path.c_str(), &db);
  char* message = nullptr;
  sqlite3_exec(
      db, sql.c_str(),
      [](void* out, int, char** values, char**) {
        if (static_cast<std::string*>(out)->empty() && values[0])
          *static_cast<std::string*>(out) = values[0];
        return 0;
      },
      &answer, &message);
  if (message != nullptr) answer = std::string("error: ") + message;
  sqlite3_free(message);
  sqlite3_close(db);
  return answer;
}

}  // namespace tandem::testing
