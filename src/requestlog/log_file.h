// The database file of the request log: opening, migrating, writing batches, retention, and what to
// do when it is damaged. Confined to the writer thread. Knows nothing of queues.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ipc/request_record.h"
#include "requestlog/database.h"
#include "requestlog/request_log.h"

namespace tandem {

class LogFile {
 public:
  explicit LogFile(const RequestLogOptions& options);

  // Opens (and creates, and migrates) the file. A damaged one is set aside and a new one begun.
  Status open();
  bool is_open() const { return db_.is_open(); }
  // One transaction, all rows or none. Afterwards is_open() may be false: the file has to be opened
  // again.
  Status write(const std::vector<ipc::RequestRecord>& rows);
  // Deletes what is too much and, if asked, what is too old, in bounded steps; gives pages back.
  Status retain(bool by_age, int64_t now_us);
  // Rows of one transaction should not exceed this.
  int64_t max_batch_bytes() const { return options_.max_bytes / 16; }
  size_t max_text_bytes() const;
  int64_t take_bytes_written();

 private:
  Status open_once();
  Status migrate();
  Status insert_all(const std::vector<ipc::RequestRecord>& rows);
  Status make_room(int64_t wanted_bytes);
  Status prune(int64_t keep_bytes);
  Status delete_aged(int64_t now_us);
  Status delete_oldest(int64_t n_rows);
  Status delete_rows(const std::string& condition);
  Status give_back(int64_t keep_free_bytes);  // free pages to the file system
  Result<int64_t> live_bytes();
  int64_t file_bytes() const;  // database and WAL
  bool checkpoint();           // false: a reader held it up
  Status set_aside();
  Status give_up(Status status);  // after an error: closes the file if it cannot be used on

  RequestLogOptions options_;
  Database db_;
  int64_t page_bytes_ = 4096;
};

}  // namespace tandem
