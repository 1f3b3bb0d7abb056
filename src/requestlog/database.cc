#include "requestlog/database.h"

#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tandem {

Database::Database(Database&& other) noexcept { *this = std::move(other); }

Database& Database::operator=(Database&& other) noexcept {
  if (this == &other) return *this;
  close();
  db_ = std::exchange(other.db_, nullptr);
  path_ = std::move(other.path_);
  last_error_ = other.last_error_;
  return *this;
}

Database::~Database() { close(); }

void Database::close() {
  if (db_ != nullptr) sqlite3_close_v2(db_);
  db_ = nullptr;
}

Status Database::failed(int rc, const std::string& action) {
  last_error_ = rc & 0xff;
  StatusCode code = StatusCode::kUnavailable;
  if (last_error_ == SQLITE_FULL) code = StatusCode::kExhausted;
  if (last_error_ == SQLITE_CORRUPT || last_error_ == SQLITE_NOTADB) code = StatusCode::kDataLoss;
  if (last_error_ == SQLITE_READONLY || last_error_ == SQLITE_PERM)
    code = StatusCode::kPermissionDenied;
  std::string reason = db_ != nullptr && sqlite3_errcode(db_) != SQLITE_OK ? sqlite3_errmsg(db_)
                                                                           : sqlite3_errstr(rc);
  return {code, path_ + ": " + action + ": " + reason};
}

Status Database::open(const std::string& path, DatabaseMode mode) {
  close();
  path_ = path;
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  flags |= mode == DatabaseMode::kReadOnly ? SQLITE_OPEN_READONLY
                                           : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  int rc = sqlite3_open_v2(path.c_str(), &db_, flags, nullptr);
  if (rc == SQLITE_OK) return ok_status();
  Status status = failed(rc, "cannot open the database");
  close();
  // SQLite does not tell a missing folder from one that takes no files.
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (mode != DatabaseMode::kReadOnly && access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)
    return {status.code(), status.message() + " (" + std::strerror(errno) + ")"};
  return status;
}

Status Database::execute(const char* sql) {
  int rc = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
  return rc == SQLITE_OK ? ok_status() : failed(rc, "cannot write");
}

void Database::rollback() {
  if (db_ != nullptr && sqlite3_get_autocommit(db_) == 0)
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
}

Result<int64_t> Database::integer(const char* sql) {
  Statement s(this);
  CHECK_OK(s.prepare(sql));
  CHECK_ASSIGN(bool has_row, s.step());
  return has_row ? s.column_integer(0) : 0;
}

void Database::set_busy_timeout_ms(int ms) { sqlite3_busy_timeout(db_, ms); }

bool Database::has_moved() const {
  int moved = 0;
  sqlite3_file_control(db_, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  return moved != 0;
}

int64_t Database::take_pages_written() {
  int pages = 0, unused = 0;
  sqlite3_db_status(db_, SQLITE_DBSTATUS_CACHE_WRITE, &pages, &unused, 1);
  return pages;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

Status Statement::prepare(const std::string& sql) {
  int rc = sqlite3_prepare_v2(db_->handle(), sql.c_str(), static_cast<int>(sql.size()), &statement_,
                              nullptr);
  return rc == SQLITE_OK ? ok_status() : db_->failed(rc, "cannot prepare a statement");
}

void Statement::bind(int index, int64_t value) { sqlite3_bind_int64(statement_, index, value); }
void Statement::bind(int index, double value) { sqlite3_bind_double(statement_, index, value); }
void Statement::bind(int index, std::string_view text) {
  sqlite3_bind_text64(statement_, index, text.data() ? text.data() : "", text.size(),
                      SQLITE_TRANSIENT, SQLITE_UTF8);
}

Result<bool> Statement::step() {
  int rc = sqlite3_step(statement_);
  if (rc == SQLITE_ROW) return true;
  if (rc == SQLITE_DONE) return false;
  return db_->failed(rc, "cannot run a statement");
}

void Statement::reset() { sqlite3_reset(statement_); }
int64_t Statement::column_integer(int index) const {
  return sqlite3_column_int64(statement_, index);
}
double Statement::column_real(int index) const { return sqlite3_column_double(statement_, index); }
std::string Statement::column_text(int index) const {
  const void* text = sqlite3_column_text(statement_, index);
  auto size = static_cast<size_t>(sqlite3_column_bytes(statement_, index));
  return text == nullptr ? std::string() : std::string(static_cast<const char*>(text), size);
}

}  // namespace tandem
