#include "requestlog/request_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "requestlog/log_file.h"
#include "requestlog/record_columns.h"

namespace tandem {
namespace {

constexpr int64_t kRetainEveryUs = 60'000'000;
constexpr int kMaxQueryRows = 10000;

std::chrono::microseconds us(int64_t n) { return std::chrono::microseconds(n); }

}  // namespace

struct RequestLog::Impl {
  explicit Impl(RequestLogOptions o) : options(std::move(o)), file(options) {}

  RequestLogOptions options;

  mutable std::mutex mutex;      // guards everything down to `thread`
  std::condition_variable wake;  // the writer
  std::condition_variable done;  // flush()
  std::deque<ipc::RequestRecord> queue;
  int64_t queue_bytes = 0;
  int64_t first_waits_since_us = 0;
  uint64_t n_taken_in = 0, n_settled = 0;  // rows accepted; rows committed or dropped
  bool wants_flush = false;
  bool stopping = false;
  RequestLogCounters counters;
  Status status;

  std::thread thread;
  // Writer thread only:
  LogFile file;
  int64_t next_open_us = 0;
  int64_t next_retain_us = 0;

  void run();
  std::vector<ipc::RequestRecord> take_rows(std::unique_lock<std::mutex>* lock);
  void write_rows(std::vector<ipc::RequestRecord> rows);
  void settle(const std::vector<ipc::RequestRecord>& rows, const Status& status);
  void try_open();
  void report(const Status& now);
};

RequestLog::RequestLog() = default;

std::unique_ptr<RequestLog> RequestLog::open(RequestLogOptions options) {
  std::unique_ptr<RequestLog> log(new RequestLog());
  log->impl_ = std::make_unique<Impl>(std::move(options));
  Impl* impl = log->impl_.get();
  impl->try_open();
  impl->thread = std::thread([impl] { impl->run(); });
  return log;
}

RequestLog::~RequestLog() {
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

void RequestLog::append(ipc::RequestRecord record) {
  if (!impl_->options.keep_text) record.prompt_text = record.completion_text = "";
  cut_record(impl_->file.max_text_bytes(), &record);
  auto bytes = static_cast<int64_t>(record_bytes(record));
  bool was_empty, is_half_full;
  {
    std::lock_guard<std::mutex> lock(impl_->mutex);
    Impl& i = *impl_;
    if (static_cast<int>(i.queue.size()) >= i.options.max_queue_rows ||
        i.queue_bytes + bytes > i.options.max_queue_bytes) {
      ++i.counters.rows_dropped;
      return;
    }
    was_empty = i.queue.empty();
    if (was_empty) i.first_waits_since_us = monotonic_us();
    i.queue.push_back(std::move(record));
    i.queue_bytes += bytes;
    ++i.n_taken_in;
    is_half_full = i.queue_bytes > i.options.max_queue_bytes / 2 ||
                   static_cast<int>(i.queue.size()) > i.options.max_queue_rows / 2;
  }
  if (was_empty || is_half_full) impl_->wake.notify_one();
}

void RequestLog::flush() {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  uint64_t target = impl_->n_taken_in;
  impl_->wants_flush = true;
  impl_->wake.notify_one();
  impl_->done.wait(lock, [&] { return impl_->n_settled >= target; });
}

RequestLogCounters RequestLog::counters() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->counters;
}

Status RequestLog::status() const {
  std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->status;
}

// --- writer thread
// ----------------------------------------------------------------------------------------

void RequestLog::Impl::run() {
  while (true) {
    std::unique_lock<std::mutex> lock(mutex);
    bool is_last = stopping;
    std::vector<ipc::RequestRecord> rows = take_rows(&lock);
    is_last = is_last && rows.empty();
    lock.unlock();
    if (is_last) return;
    if (!file.is_open() && monotonic_us() >= next_open_us) try_open();
    write_rows(std::move(rows));
    bool by_age = monotonic_us() >= next_retain_us;
    if (by_age) next_retain_us = monotonic_us() + kRetainEveryUs;
    if (file.is_open()) {
      Status result = file.retain(by_age, utc_us());
      if (!result.ok()) report(result);  // success says nothing about the rows
    }
    std::lock_guard<std::mutex> guard(mutex);
    counters.bytes_written += static_cast<uint64_t>(file.take_bytes_written());
  }
}

// Waits until rows are due (flush_ms after the first, a flush, a half-full queue, the end) or
// retention is.
std::vector<ipc::RequestRecord> RequestLog::Impl::take_rows(std::unique_lock<std::mutex>* lock) {
  auto is_due = [this] {
    return stopping || wants_flush || queue_bytes > options.max_queue_bytes / 2 ||
           static_cast<int>(queue.size()) > options.max_queue_rows / 2;
  };
  wake.wait_for(*lock, us(kRetainEveryUs), [&] { return !queue.empty() || is_due(); });
  if (!queue.empty()) {
    int64_t left = first_waits_since_us + options.flush_ms * 1000ll - monotonic_us();
    wake.wait_for(*lock, us(std::max<int64_t>(left, 0)), is_due);
  }
  wants_flush = false;
  std::vector<ipc::RequestRecord> rows(std::make_move_iterator(queue.begin()),
                                       std::make_move_iterator(queue.end()));
  queue.clear();
  queue_bytes = 0;
  if (rows.empty()) done.notify_all();
  return rows;
}

void RequestLog::Impl::write_rows(std::vector<ipc::RequestRecord> rows) {
  auto next = rows.begin();
  while (next != rows.end()) {
    std::vector<ipc::RequestRecord> batch;
    int64_t bytes = 0;
    while (next != rows.end() && (batch.empty() || bytes < file.max_batch_bytes())) {
      clean_record(&*next);
      bytes += static_cast<int64_t>(record_bytes(*next));
      batch.push_back(std::move(*next++));
    }
    Status result =
        file.is_open() ? file.write(batch) : unavailable("");  // the reason is known already
    settle(batch, result);
  }
}

void RequestLog::Impl::settle(const std::vector<ipc::RequestRecord>& rows, const Status& result) {
  bool was_tried = result.ok() || !result.message().empty();
  if (was_tried) report(result);
  if (!file.is_open() && was_tried) next_open_us = monotonic_us() + options.reopen_ms * 1000ll;
  auto bytes = static_cast<uint64_t>(file.take_bytes_written());
  std::lock_guard<std::mutex> lock(mutex);
  counters.bytes_written += bytes;
  (result.ok() ? counters.rows_written : counters.rows_dropped) += rows.size();
  n_settled += rows.size();
  done.notify_all();
}

void RequestLog::Impl::try_open() {
  Status result = file.open();
  if (!result.ok()) next_open_us = monotonic_us() + options.reopen_ms * 1000ll;
  report(result);
}

// Keeps the state for status() and logs when it changes.
void RequestLog::Impl::report(const Status& now) {
  bool was_ok;
  {
    std::lock_guard<std::mutex> lock(mutex);
    was_ok = status.ok();
    status = now;
    if (!now.ok()) ++counters.flush_errors;
  }
  if (was_ok && !now.ok()) log_warn("request log drops rows", {{"reason", now.message()}});
  if (!was_ok && now.ok()) log_info("request log writes again", {{"path", options.path}});
}

// --- reading
// ----------------------------------------------------------------------------------------------

Result<std::vector<ipc::RequestRecord>> RequestLog::query(const ipc::RecordQuery& q) const {
  if (q.limit < 1 || q.limit > kMaxQueryRows)
    return invalid_argument(
        fmt::format("limit must be from 1 to {}, got {}", kMaxQueryRows, q.limit));
  Database db;
  CHECK_OK(db.open(impl_->options.path, DatabaseMode::kReadOnly));
  db.set_busy_timeout_ms(1000);
  std::string sql = select_sql() +
                    " WHERE (?1 = 0 OR finished_us >= ?1) AND (?2 = 0 OR finished_us < ?2)"
                    " AND (?3 = '' OR status = ?3) AND (?4 = '' OR client = ?4)"
                    " AND (?5 = '' OR id = ?5) ORDER BY n DESC LIMIT ?6";
  Statement s(&db);
  CHECK_OK(s.prepare(sql));
  s.bind(1, q.since_us);
  s.bind(2, q.until_us);
  s.bind(3, std::string_view(q.status));
  s.bind(4, std::string_view(q.client));
  s.bind(5, std::string_view(q.id));
  s.bind(6, static_cast<int64_t>(q.limit));
  std::vector<ipc::RequestRecord> records;
  while (true) {
    CHECK_ASSIGN(bool has_row, s.step());
    if (!has_row) return records;
    records.push_back(read_record(s));
  }
}

}  // namespace tandem
