// The request log: one row a finished request in SQLite, written by a thread of its own in batches. Serving
// never waits for it and never fails because of it: whatever goes wrong (queue or disk full, read-only or
// damaged file, a database of a newer version) costs rows, which are counted, and status() tells why.
// Policy (byte budget, ageing, damaged files) is described in README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ipc/request_record.h"

namespace tandem {

struct RequestLogOptions {
  std::string path;                      // of the database; its folder must exist
  bool keep_text = false;                // store prompt_text and completion_text
  int flush_ms = 1000;                   // longest time a row waits for its transaction
  int64_t max_bytes = 256 << 20;         // budget of database + WAL
  int max_age_days = 30;
  int max_queue_rows = 8192;             // waiting rows; more are dropped
  int64_t max_queue_bytes = 16 << 20;    // of waiting rows, texts included
  int reopen_ms = 5000;                  // pause before a file that failed is tried again
};

struct RequestLogCounters {
  uint64_t rows_written = 0;   // committed
  uint64_t rows_dropped = 0;   // given to append() but never committed, for whatever reason
  uint64_t bytes_written = 0;  // pages written to the WAL; a checkpoint writes at most as much again
  uint64_t flush_errors = 0;   // transactions or openings that failed
};

// Thread-safe.
class RequestLog {
 public:
  // Never fails: a file that cannot be used is a status(), and is tried again every reopen_ms. A database of
  // a newer version is left as it is. Starts the writer thread.
  static std::unique_ptr<RequestLog> open(RequestLogOptions options);
  ~RequestLog();  // writes what waits, within a bounded time
  RequestLog(const RequestLog&) = delete;
  RequestLog& operator=(const RequestLog&) = delete;

  // Queues one row. Never blocks on the disk; a full queue drops the row and counts it.
  void append(ipc::RequestRecord record);
  // Writes what was appended before this call and returns when that is committed or dropped.
  void flush();
  // Newest first, from a read-only connection of its own; rows not yet flushed are not seen.
  Result<std::vector<ipc::RequestRecord>> query(const ipc::RecordQuery& query) const;
  RequestLogCounters counters() const;
  Status status() const;  // ok, or why rows are being dropped

 private:
  RequestLog();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
