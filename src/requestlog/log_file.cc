// DESIGN. Database + WAL stay below max_bytes: pruning begins at 60 % of it and deletes the oldest
// rows (by order of writing, so that no clock can fool it) down to 50 %, in steps small enough for
// their own WAL. A reader that holds a transaction keeps the WAL from being reset; when the budget
// is reached that way, rows are refused until it lets go. Age is judged by the clock, but only so
// many rows a pass: a clock that jumps ahead for an hour costs some rows, not the log.
#include "requestlog/log_file.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/clock.h"
#include "base/log.h"
#include "requestlog/record_columns.h"

namespace tandem {
namespace {

constexpr const char* kMigrations[] = {
#include "migrations_sql.inc"
};
constexpr int64_t kLatestVersion = static_cast<int64_t>(std::size(kMigrations));
constexpr int kBusyTimeoutMs = 1000;
constexpr int64_t kMaxAgedRowsAPass = 2000;
constexpr int64_t kSlackBytes = 64 << 10;  // header, WAL header, interior pages of a transaction
constexpr int64_t kDayUs = 86400ll * 1000000;

int64_t size_of(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

}  // namespace

LogFile::LogFile(const RequestLogOptions& options) : options_(options) {}

size_t LogFile::max_text_bytes() const {
  return static_cast<size_t>(std::clamp<int64_t>(options_.max_bytes / 64, 1024, 1 << 20));
}

int64_t LogFile::file_bytes() const {
  return size_of(options_.path) + size_of(options_.path + "-wal");
}

Status LogFile::open() {
  Status status = open_once();
  if (status.code() == StatusCode::kDataLoss) {
    CHECK_OK(set_aside());
    status = open_once();
  }
  if (!status.ok()) db_.close();
  return status;
}

Status LogFile::open_once() {
  CHECK_OK(db_.open(options_.path, DatabaseMode::kReadWrite));
  db_.set_busy_timeout_ms(kBusyTimeoutMs);
  CHECK_ASSIGN(int64_t version,
               db_.integer("PRAGMA user_version"));  // reads the header: NOTADB shows here
  if (version > kLatestVersion)
    return {StatusCode::kFailedPrecondition,
            fmt::format("{}: user_version must be at most {}, found {}: written by a newer "
                        "version; upgrade, or move"
                        " the file away",
                        options_.path, kLatestVersion, version)};
  if (version == 0)
    CHECK_OK(db_.execute("PRAGMA auto_vacuum=INCREMENTAL"));  // before the first table
  CHECK_OK(db_.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL"));
  CHECK_ASSIGN(page_bytes_, db_.integer("PRAGMA page_size"));
  int64_t wal_bytes =
      std::clamp<int64_t>(options_.max_bytes / 32, 16 * page_bytes_, 1000 * page_bytes_);
  CHECK_OK(
      db_.execute(fmt::format("PRAGMA wal_autocheckpoint={}; PRAGMA journal_size_limit={}; PRAGMA"
                              " cache_size=-1024",
                              wal_bytes / page_bytes_, wal_bytes)
                      .c_str()));
  return migrate();
}

Status LogFile::migrate() {
  CHECK_ASSIGN(int64_t version, db_.integer("PRAGMA user_version"));
  for (int64_t v = version; v < kLatestVersion; ++v) {
    std::string sql =
        fmt::format("BEGIN IMMEDIATE; {}; PRAGMA user_version={}; COMMIT", kMigrations[v], v + 1);
    Status status = db_.execute(sql.c_str());
    if (status.ok()) continue;
    db_.rollback();
    if (db_.last_error() == SQLITE_ERROR)
      return {StatusCode::kFailedPrecondition,
              fmt::format("{}; is it another program's database? Move it away, or set log.database",
                          status.message())};
    return status;
  }
  return ok_status();
}

// Renames database and WAL together, so that what can be saved can be saved later. One set is kept.
Status LogFile::set_aside() {
  db_.close();
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path path(options_.path);
  std::string prefix = path.filename().string() + ".damaged-";
  fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().rfind(prefix, 0) == 0) fs::remove(entry.path(), error);
  std::string stamp = format_utc(utc_us()).substr(0, 19);
  std::replace(stamp.begin(), stamp.end(), ':', '-');
  std::string aside = options_.path + ".damaged-" + stamp;
  if (std::rename(options_.path.c_str(), aside.c_str()) != 0)
    return errno_status(errno, "cannot set aside the damaged " + options_.path);
  std::rename((options_.path + "-wal").c_str(), (aside + "-wal").c_str());
  fs::remove(options_.path + "-shm", error);
  log_error("request log damaged, set aside", {{"path", options_.path}, {"kept_as", aside}});
  return ok_status();
}

Status LogFile::give_up(Status status) {
  int error = db_.last_error();
  if (error == SQLITE_CORRUPT || error == SQLITE_NOTADB) {
    CHECK_OK(set_aside());
    CHECK_OK(open());
  } else if (error != SQLITE_FULL && error != SQLITE_BUSY && error != SQLITE_LOCKED) {
    db_.close();
  }
  return status;
}

Status LogFile::write(const std::vector<ipc::RequestRecord>& rows) {
  if (db_.has_moved()) CHECK_OK(open());  // deleted or renamed by an operator: begin a new one
  int64_t bytes = kSlackBytes;
  for (const auto& row : rows) bytes += static_cast<int64_t>(record_bytes(row));
  if (file_bytes() + bytes > options_.max_bytes) CHECK_OK(make_room(bytes));
  Status status = insert_all(rows);
  if (status.ok()) return status;
  int error = db_.last_error();
  Status after = give_up(status);
  bool has_new_file = (error == SQLITE_CORRUPT || error == SQLITE_NOTADB) && db_.is_open();
  if (has_new_file) return insert_all(rows);
  return after;
}

Status LogFile::insert_all(const std::vector<ipc::RequestRecord>& rows) {
  CHECK_OK(db_.execute("BEGIN IMMEDIATE"));
  auto insert = [&]() -> Status {
    Statement s(&db_);
    CHECK_OK(s.prepare(insert_sql()));
    for (const auto& row : rows) {
      bind_record(row, &s);
      CHECK_OK(s.step().status());
      s.reset();
    }
    return ok_status();
  };
  Status status = insert();
  if (status.ok()) status = db_.execute("COMMIT");
  if (status.ok()) return status;
  db_.rollback();
  return status;
}

// --- retention
// --------------------------------------------------------------------------------------------

bool LogFile::checkpoint() {
  db_.set_busy_timeout_ms(0);  // a reader may take its time
  auto busy = db_.integer("PRAGMA wal_checkpoint(TRUNCATE)");
  db_.set_busy_timeout_ms(kBusyTimeoutMs);
  return busy.ok() && *busy == 0;
}

Result<int64_t> LogFile::live_bytes() {
  CHECK_ASSIGN(int64_t pages, db_.integer("PRAGMA page_count"));
  CHECK_ASSIGN(int64_t free_pages, db_.integer("PRAGMA freelist_count"));
  return (pages - free_pages) * page_bytes_;
}

Status LogFile::make_room(int64_t wanted_bytes) {
  bool is_free = checkpoint();
  if (is_free && file_bytes() + wanted_bytes > options_.max_bytes) {
    CHECK_OK(prune(std::max<int64_t>(0, options_.max_bytes / 2 - wanted_bytes)));
    CHECK_OK(give_back(0));
  }
  if (file_bytes() + wanted_bytes <= options_.max_bytes) return ok_status();
  return exhausted(fmt::format("{}: database and WAL take {} of log.max_bytes = {}{}",
                               options_.path, file_bytes(), options_.max_bytes,
                               is_free ? "" : ", and a reader holds a transaction open: end it"));
}

// Rows are numbered in order of writing; gaps (rows deleted by age) only make a step smaller.
Status LogFile::prune(int64_t keep_bytes) {
  int64_t step_bytes = options_.max_bytes / 32;
  while (true) {
    CHECK_ASSIGN(int64_t live, live_bytes());
    CHECK_ASSIGN(int64_t n_rows, db_.integer("SELECT max(n) - min(n) + 1 FROM requests"));
    if (live <= keep_bytes || n_rows <= 0) return ok_status();
    int64_t row_bytes = std::max<int64_t>(1, live / n_rows);
    CHECK_OK(delete_oldest(std::clamp<int64_t>(step_bytes / row_bytes, 1, n_rows)));
    if (!checkpoint()) return ok_status();  // a reader came: go on later
  }
}

Status LogFile::delete_oldest(int64_t n_rows) {
  return delete_rows(fmt::format("n < (SELECT min(n) FROM requests) + {}", n_rows));
}

Status LogFile::delete_aged(int64_t now_us) {
  return delete_rows(
      fmt::format("n IN (SELECT n FROM (SELECT n, finished_us FROM requests ORDER BY n LIMIT {}) "
                  "WHERE finished_us < {})",
                  kMaxAgedRowsAPass, now_us - options_.max_age_days * kDayUs));
}

Status LogFile::delete_rows(const std::string& condition) {
  return db_.execute(fmt::format("DELETE FROM requests WHERE {}", condition).c_str());
}

// Free pages are kept for the next rows: giving back all of them, only to grow again, wrote 2.9 bytes to the
// WAL for a byte of 8 kB rows, this 2.3. They leave the file at the next checkpoint.
Status LogFile::give_back(int64_t keep_free_bytes) {
  int64_t step_pages = options_.max_bytes / 32 / page_bytes_;
  while (true) {
    CHECK_ASSIGN(int64_t free_pages, db_.integer("PRAGMA freelist_count"));
    if (free_pages * page_bytes_ <= keep_free_bytes) return ok_status();
    CHECK_OK(db_.execute(fmt::format("PRAGMA incremental_vacuum({})", step_pages).c_str()));
    if (!checkpoint()) return ok_status();  // a reader came: go on later
  }
}

Status LogFile::retain(bool by_age, int64_t now_us) {
  auto run = [&]() -> Status {
    if (by_age) CHECK_OK(delete_aged(now_us));
    CHECK_ASSIGN(int64_t live, live_bytes());
    if (live > options_.max_bytes / 10 * 6 && checkpoint()) CHECK_OK(prune(options_.max_bytes / 2));
    return give_back(options_.max_bytes / 8);
  };
  Status status = run();
  return status.ok() ? status : give_up(status);
}

int64_t LogFile::take_bytes_written() {
  return db_.is_open() ? db_.take_pages_written() * page_bytes_ : 0;
}

}  // namespace tandem
