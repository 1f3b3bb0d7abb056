// Request-log rows straight from the SQLite file, read-only, with no server needed.
#include <fmt/format.h>
#include <sqlite3.h>

#include <charconv>
#include <cstring>
#include <memory>

#include "ctl/log_fields.h"
#include "ctl/log_source.h"

namespace tandem::ctl {

namespace {

constexpr int kBusyMs = 3000;

struct Close {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, Close>;
using Statement = std::unique_ptr<sqlite3_stmt, Close>;

Status failed(const std::string& path, sqlite3* db) {
  return unavailable(fmt::format("cannot read the request log {}: {}", path,
                                 db ? sqlite3_errmsg(db) : "out of memory"));
}

void read(sqlite3_stmt* s, int column, std::string* out) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(s, column));
  if (text) out->assign(text, static_cast<size_t>(sqlite3_column_bytes(s, column)));
}
void read(sqlite3_stmt* s, int column, double* out) { *out = sqlite3_column_double(s, column); }
void read(sqlite3_stmt* s, int column, int* out) { *out = sqlite3_column_int(s, column); }
void read(sqlite3_stmt* s, int column, int64_t* out) { *out = sqlite3_column_int64(s, column); }
void read(sqlite3_stmt* s, int column,
          uint64_t* out) {  // decimal text: SQLite's integers are signed
  std::string text;
  read(s, column, &text);
  std::from_chars(text.data(), text.data() + text.size(), *out);
}

// Columns are found by name: a file of a newer version may have more, one of an older version
// fewer.
ipc::RequestRecord read_row(sqlite3_stmt* s) {
  ipc::RequestRecord record;
  for (int c = 0; c < sqlite3_column_count(s); ++c) {
    const char* column = sqlite3_column_name(s, c);
    visit_fields(record, [&](const char* name, auto& field) {
      if (std::strcmp(name, column) == 0) read(s, c, &field);
    });
    if (std::strcmp(column, "received_us") == 0) read(s, c, &record.received_us);
    if (std::strcmp(column, "finished_us") == 0) read(s, c, &record.finished_us);
  }
  return record;
}

}  // namespace

Result<std::vector<ipc::RequestRecord>> rows_from_database(const std::string& path,
                                                           const ipc::RecordQuery& query) {
  sqlite3* opened = nullptr;
  const int rc = sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY, nullptr);
  const Database db(opened);
  if (rc != SQLITE_OK) return failed(path, db.get());
  sqlite3_busy_timeout(db.get(), kBusyMs);
  constexpr const char* kSelect =
      "SELECT * FROM requests WHERE finished_us >= ?1 AND (?2 = '' OR status = ?2) AND (?3 = '' OR "
      "client = ?3) "
      "ORDER BY rowid DESC LIMIT ?4";
  sqlite3_stmt* prepared = nullptr;
  if (sqlite3_prepare_v2(db.get(), kSelect, -1, &prepared, nullptr) != SQLITE_OK)
    return failed(path, db.get());
  const Statement statement(prepared);
  sqlite3_bind_int64(prepared, 1, query.since_us);
  sqlite3_bind_text(prepared, 2, query.status.c_str(), -1, SQLITE_STATIC);
  sqlite3_bind_text(prepared, 3, query.client.c_str(), -1, SQLITE_STATIC);
  sqlite3_bind_int(prepared, 4, query.limit);
  std::vector<ipc::RequestRecord> rows;
  int step;
  while ((step = sqlite3_step(prepared)) == SQLITE_ROW) rows.push_back(read_row(prepared));
  if (step != SQLITE_DONE) return failed(path, db.get());
  return rows;
}

}  // namespace tandem::ctl
