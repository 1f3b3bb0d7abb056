// SQLite in RAII: one connection, its statements, its errors as Status. Confined to the thread that
// uses it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tandem {

enum class DatabaseMode { kReadOnly, kReadWrite };

class Database {
 public:
  Database() = default;
  Database(Database&& other) noexcept;
  Database& operator=(Database&& other) noexcept;
  ~Database();

  Status open(const std::string& path, DatabaseMode mode);
  void close();
  bool is_open() const { return db_ != nullptr; }
  sqlite3* handle() const { return db_; }

  Status execute(const char* sql);  // any number of statements, rows are ignored
  void rollback();                  // if a transaction is open; keeps last_error()
  // First column of the first row, 0 if there is none.
  Result<int64_t> integer(const char* sql);
  void set_busy_timeout_ms(int ms);
  // True if the file at the path is no longer the one that is open.
  bool has_moved() const;
  // Pages written since the last call.
  int64_t take_pages_written();
  // Of the last failed call, e.g. SQLITE_FULL; extended bits removed.
  int last_error() const { return last_error_; }
  Status failed(int rc, const std::string& action);  // remembers rc

 private:
  sqlite3* db_ = nullptr;
  std::string path_;
  int last_error_ = 0;
};

// A prepared statement. Usage: prepare, then for each row bind… and step.
class Statement {
 public:
  explicit Statement(Database* db) : db_(db) {}
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement();

  Status prepare(const std::string& sql);
  void bind(int index, int64_t value);  // index from 1
  void bind(int index, double value);
  void bind(int index, std::string_view text);  // copied
  Result<bool> step();                          // true: a row is there
  void reset();
  int64_t column_integer(int index) const;  // index from 0
  double column_real(int index) const;
  std::string column_text(int index) const;

 private:
  Database* db_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace tandem
