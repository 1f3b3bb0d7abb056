// C-56: whatever happens to the file, appends return at once, losses are counted, and rows are
// written again when the cause is gone.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "requestlog/request_log.h"
#include "tests/requestlog/log_folder.h"

using namespace tandem;
using Catch::Matchers::Contains;
using tandem::testing::ask;
using tandem::testing::LogFolder;
using tandem::testing::record;

namespace {

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
void pause_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Appends until a row is committed again, for at most five seconds.
bool recovers(RequestLog* log) {
  uint64_t before = log->counters().rows_written;
  for (int i = 0; i < 250; ++i) {
    log->append(record(9000 + i));
    log->flush();
    if (log->counters().rows_written > before) return log->status().ok();
    pause_ms(20);
  }
  return false;
}

}  // namespace

TEST_CASE("a full disk costs rows, not service") {
  LogFolder folder;
  if (!folder.mount_tmpfs("2m")) {
    WARN("skipped: mounting a tmpfs is not allowed here");
    return;
  }
  write_file(folder.path("filler"), std::string(1 << 20, 'f'));
  auto options = folder.options();
  options.keep_text = true;
  auto log = RequestLog::open(options);
  int64_t slowest_us = 0;
  for (int i = 0; i < 400; ++i) {
    int64_t begin = monotonic_us();
    log->append(record(i, 8000));
    slowest_us = std::max(slowest_us, monotonic_us() - begin);
    if (i % 10 == 0) log->flush();
  }
  log->flush();
  auto c = log->counters();
  CHECK(c.rows_written > 10);
  CHECK(c.rows_dropped > 100);
  CHECK(c.rows_written + c.rows_dropped == 400);
  CHECK(c.flush_errors > 0);
  CHECK_FALSE(log->status().ok());
  CHECK(slowest_us < 250000);
  CHECK(ask(folder.path(), "PRAGMA integrity_check") == "ok");
  std::filesystem::remove(folder.path("filler"));
  CHECK(recovers(log.get()));
}

TEST_CASE("a read-only file system is named, and left when it is writable again") {
  LogFolder folder;
  if (!folder.mount_tmpfs("8m")) {
    WARN("skipped: mounting a tmpfs is not allowed here");
    return;
  }
  RequestLog::open(folder.options())->append(record(1));
  REQUIRE(folder.set_read_only(true));
  auto log = RequestLog::open(folder.options());
  log->append(record(2));
  log->flush();
  CHECK_FALSE(log->status().ok());
  CHECK_THAT(log->status().message(), Contains("requests.db"));
  CHECK(log->counters().rows_dropped == 1);
  REQUIRE(folder.set_read_only(false));
  CHECK(recovers(log.get()));
  CHECK(ask(folder.path(), "SELECT count(*) FROM requests WHERE id IN ('req_1', 'req_2')") == "1");
}

TEST_CASE("a folder that is missing or not a folder") {
  LogFolder folder;
  auto options = folder.options();
  options.path = folder.path("nowhere/requests.db");
  auto log = RequestLog::open(options);
  log->append(record(1));
  log->flush();
  CHECK_THAT(log->status().message(), Contains("cannot open") && Contains("(No such file or directory)"));
  CHECK(log->counters().rows_dropped == 1);
  CHECK_FALSE(log->query({}).ok());
  std::filesystem::create_directory(folder.path("nowhere"));
  CHECK(recovers(log.get()));
}

TEST_CASE("damaged files are set aside and a new one is begun") {
  LogFolder folder;
  SECTION("not a database at all") { write_file(folder.path(), std::string(10000, 'z')); }
  SECTION("a header that is cut") {
    RequestLog::open(folder.options())->append(record(1));
    std::filesystem::resize_file(folder.path(), 50);
    write_file(folder.path(), std::string("SQLite format 3\0junk", 20));
  }
  SECTION("pages overwritten") {
    {
      auto log = RequestLog::open(folder.options());
      for (int i = 0; i < 500; ++i) log->append(record(i));
    }
    std::fstream f(folder.path(), std::ios::in | std::ios::out | std::ios::binary);
    f.seekp(4096);
    f << std::string(LogFolder::size_of(folder.path()) - 4096, '\xa5');
  }
  auto log = RequestLog::open(folder.options());
  log->append(record(7));
  log->flush();
  log->append(record(8));
  log->flush();
  CHECK(log->status().message() == "");
  CHECK(log->counters().rows_written == 2);
  CHECK(log->counters().rows_dropped == 0);
  CHECK((*log->query({}))[0].id == "req_8");
  CHECK(folder.count(".damaged-") >= 1);
  CHECK(ask(folder.path(), "PRAGMA integrity_check") == "ok");
}

TEST_CASE("a database of a newer version, or of another program, is left as it is") {
  LogFolder folder;
  SECTION("newer") {
    ask(folder.path(), "CREATE TABLE future (x); PRAGMA user_version=99");
    auto log = RequestLog::open(folder.options());
    log->append(record(1));
    log->flush();
    CHECK_THAT(log->status().message(), Contains("user_version must be at most 1, found 99"));
    CHECK(log->counters().rows_dropped == 1);
    CHECK(log->counters().flush_errors >= 1);
  }
  SECTION("another program's") {
    ask(folder.path(), "CREATE TABLE requests (x); INSERT INTO requests VALUES (5)");
    auto log = RequestLog::open(folder.options());
    log->append(record(1));
    log->flush();
    CHECK_THAT(log->status().message(), Contains("another program's database"));
    CHECK(log->counters().rows_dropped == 1);
    log.reset();
    CHECK(ask(folder.path(), "SELECT x FROM requests") == "5");
  }
  CHECK(folder.count(".damaged-") == 0);
}

TEST_CASE("a file that was deleted or replaced under the log is begun anew") {
  LogFolder folder;
  auto log = RequestLog::open(folder.options());
  log->append(record(1));
  log->flush();
  for (const char* name : {"requests.db", "requests.db-wal", "requests.db-shm"})
    std::filesystem::remove(folder.path(name));
  log->append(record(2));
  log->flush();
  CHECK(log->status().message() == "");
  CHECK(ask(folder.path(), "SELECT id FROM requests") == "req_2");
}

TEST_CASE("kill -9 in the middle of writing leaves whole rows only") {
  LogFolder folder;
  for (int round = 0; round < 8; ++round) {
    pid_t child = fork();
    if (child == 0) {
      auto options = folder.options();
      options.flush_ms = 10;
      options.keep_text = true;
      options.max_bytes = 2 << 20;  // so that pruning is hit too
      auto log = RequestLog::open(options);
      for (int i = 0;; ++i) {
        log->append(record(i, 3000));
        usleep(300);
      }
    }
    for (int i = 0; i < 500 && LogFolder::size_of(folder.path()) < 8192; ++i) pause_ms(10);
    pause_ms(50 + 23 * round);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    REQUIRE(ask(folder.path(), "PRAGMA integrity_check") == "ok");
    REQUIRE(ask(folder.path(), "SELECT count(*) FROM requests WHERE length(prompt_text) <> 3000") ==
            "0");
  }
  REQUIRE(std::stoi(ask(folder.path(), "SELECT count(*) FROM requests")) > 100);
  auto log = RequestLog::open(folder.options());
  log->append(record(1));
  log->flush();
  CHECK(log->status().message() == "");
  CHECK(folder.count(".damaged-") == 0);
}
