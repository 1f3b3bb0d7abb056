// What is written comes back, in order, whole; queue, texts and budget have bounds.
#include "requestlog/request_log.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <limits>
#include <thread>

#include "base/clock.h"
#include "tests/requestlog/log_folder.h"

using namespace tandem;
using Catch::Matchers::Contains;
using tandem::testing::ask;
using tandem::testing::LogFolder;
using tandem::testing::record;

TEST_CASE("a row comes back with every field") {
  LogFolder folder;
  auto options = folder.options();
  options.keep_text = true;
  auto log = RequestLog::open(options);
  REQUIRE(log->status().message() == "");
  ipc::RequestRecord r;
  r.id = "req_a", r.received_us = 11, r.finished_us = utc_us(), r.client = "key one",
  r.endpoint = "chat", r.model = "m";
  r.priority = "low", r.prompt_tokens = 1, r.completion_tokens = 2, r.cached_tokens = 3,
  r.queue_ms = 1.5;
  r.prefill_ms = 2.5, r.decode_ms = 3.5, r.total_ms = 4.5, r.ttft_ms = 5.5, r.status = "stop",
  r.finish_reason = "stop";
  r.http_status = 200, r.degradation = "logprobs", r.weights = "full", r.seed = UINT64_MAX,
  r.worker_generation = 7;
  r.n_dispatches = 2, r.error = "e", r.prompt_text = "grüß\ndich", r.completion_text = "ja 🙂";
  log->append(r);
  log->flush();
  auto rows = log->query({});
  REQUIRE(rows.status().message() == "");
  REQUIRE(rows->size() == 1);
  const ipc::RequestRecord& got = (*rows)[0];
  CHECK(got.id == r.id);
  CHECK(got.received_us == 11);
  CHECK(got.finished_us == r.finished_us);
  CHECK(got.client == r.client);
  CHECK(got.endpoint == "chat");
  CHECK(got.model == "m");
  CHECK(got.priority == "low");
  CHECK(got.prompt_tokens == 1);
  CHECK(got.completion_tokens == 2);
  CHECK(got.cached_tokens == 3);
  CHECK(got.queue_ms == 1.5);
  CHECK(got.prefill_ms == 2.5);
  CHECK(got.decode_ms == 3.5);
  CHECK(got.total_ms == 4.5);
  CHECK(got.ttft_ms == 5.5);
  CHECK(got.status == "stop");
  CHECK(got.finish_reason == "stop");
  CHECK(got.http_status == 200);
  CHECK(got.degradation == "logprobs");
  CHECK(got.weights == "full");
  CHECK(got.seed == UINT64_MAX);
  CHECK(got.worker_generation == 7);
  CHECK(got.n_dispatches == 2);
  CHECK(got.error == "e");
  CHECK(got.prompt_text == r.prompt_text);
  CHECK(got.completion_text == r.completion_text);
  CHECK(ask(folder.path(), "PRAGMA user_version") == "1");
  CHECK(ask(folder.path(), "PRAGMA journal_mode") == "wal");
  CHECK(ask(folder.path(), "PRAGMA auto_vacuum") == "2");
  CHECK(log->counters().rows_written == 1);
  CHECK(log->counters().bytes_written >= 4096);
}

TEST_CASE(
    "text is kept only when asked for; bad bytes and numbers are made storable; long texts are "
    "cut") {
  LogFolder folder;
  auto options = folder.options();
  options.max_bytes = 1 << 20;
  {
    auto log = RequestLog::open(options);
    log->append(record(1, 100));
    log->flush();
    CHECK((*log->query({}))[0].prompt_text == "");
  }
  options.keep_text = true;
  auto log = RequestLog::open(options);
  ipc::RequestRecord r = record(2);
  r.prompt_text = std::string("a\xff\xc0\xaf\xed\xa0\x80z\0\xe2\x82", 11);
  r.completion_text = std::string(20000, 'x');
  r.error = std::string(5000, 'e');
  r.queue_ms = std::numeric_limits<double>::quiet_NaN();
  r.ttft_ms = std::numeric_limits<double>::infinity();
  log->append(r);
  log->flush();
  REQUIRE(log->status().message() == "");
  auto got = (*log->query({}))[0];
  std::string u = "\xef\xbf\xbd";
  CHECK(got.prompt_text == "a" + u + u + u + u + u + u + "z" + u + u + u);
  CHECK(got.completion_text == std::string(16384, 'x') + "… [cut, 20000 bytes]");
  CHECK(got.error == std::string(4096, 'e') + "… [cut, 5000 bytes]");
  CHECK(got.queue_ms == 0);
  CHECK(got.ttft_ms == 0);
}

TEST_CASE("queries filter, are newest first and bounded") {
  LogFolder folder;
  auto log = RequestLog::open(folder.options());
  for (int i = 0; i < 100; ++i) log->append(record(i));
  log->flush();
  ipc::RecordQuery q;
  q.limit = 3;
  auto rows = log->query(q);
  REQUIRE(rows->size() == 3);
  CHECK((*rows)[0].id == "req_99");
  CHECK((*rows)[2].id == "req_97");
  q.limit = 1000;
  q.client = "odd";
  CHECK(log->query(q)->size() == 50);
  q.status = "failed";
  CHECK(log->query(q)->size() == 17);
  q = {};
  q.since_us = record(10).finished_us;
  q.until_us = record(20).finished_us;
  CHECK(log->query(q)->size() == 10);
  q = {};
  q.id = "req_42";
  CHECK(log->query(q)->size() == 1);
  q.id = "x' OR 1=1 --";
  CHECK(log->query(q)->empty());
  for (int limit : {0, -1, 10001}) {
    q.limit = limit;
    CHECK_THAT(log->query(q).status().message(),
               Contains("limit must be from 1 to 10000, got " + std::to_string(limit)));
  }
}

TEST_CASE("rows are committed within flush_ms, and all of them by the destructor") {
  LogFolder folder;
  auto options = folder.options();
  options.flush_ms = 50;
  {
    auto log = RequestLog::open(options);
    log->append(record(1));
    for (int i = 0; i < 500 && log->counters().rows_written == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(log->counters().rows_written == 1);
  }
  options.flush_ms = 60000;
  {
    auto log = RequestLog::open(options);
    for (int i = 0; i < 50; ++i) log->append(record(i));
  }
  CHECK(ask(folder.path(), "SELECT count(*) FROM requests") == "51");
}

TEST_CASE("a full queue drops the row at once and counts it") {
  LogFolder folder;
  auto options = folder.options();
  options.flush_ms = 60000;
  options.max_queue_rows = 10;
  auto log = RequestLog::open(options);
  // A lock held by somebody else keeps the writer busy, so that the queue can fill.
  sqlite3* other = nullptr;
  REQUIRE(sqlite3_open(folder.path().c_str(), &other) == SQLITE_OK);
  REQUIRE(sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr) == SQLITE_OK);
  int64_t begin = monotonic_us();
  for (int i = 0; i < 1000; ++i) log->append(record(i));
  int64_t took_ms = (monotonic_us() - begin) / 1000;
  CHECK(took_ms < 500);  // the lock would have cost a second
  CHECK(log->counters().rows_dropped >= 900);
  sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr);
  sqlite3_close(other);
  log->flush();
  auto c = log->counters();
  CHECK(c.rows_written + c.rows_dropped == 1000);
}

TEST_CASE("C-56: database and WAL stay within the budget, the newest rows stay, pages go back") {
  LogFolder folder;
  auto options = folder.options();
  options.keep_text = true;
  options.max_bytes = 4 << 20;
  options.flush_ms = 10;
  auto log = RequestLog::open(options);
  int64_t widest = 0;
  for (int i = 0; i < 2500; ++i) {  // 20 MB of bodies
    log->append(record(i, 8000));
    if (i % 50 == 49) {
      log->flush();
      widest = std::max(widest, folder.bytes());
    }
  }
  log->flush();
  REQUIRE(log->status().message() == "");
  INFO("widest " << widest);
  CHECK(widest <= options.max_bytes);
  CHECK(log->counters().rows_dropped == 0);
  ipc::RecordQuery q;
  q.limit = 10000;
  auto rows = log->query(q);
  CHECK(rows->size() > 150);  // half of the budget in rows of 8 kB
  CHECK((*rows)[0].id == "req_2499");
  CHECK((*rows)[100].id == "req_2399");
  CHECK(ask(folder.path(), "PRAGMA integrity_check") == "ok");
}

TEST_CASE("C-56: a reader that holds a transaction stops the log at its budget, not the appends") {
  LogFolder folder;
  auto options = folder.options();
  options.keep_text = true;
  options.max_bytes = 2 << 20;
  auto log = RequestLog::open(options);
  log->append(record(0));
  log->flush();
  sqlite3* reader = nullptr;
  REQUIRE(sqlite3_open(folder.path().c_str(), &reader) == SQLITE_OK);
  REQUIRE(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM requests", nullptr, nullptr, nullptr) ==
          SQLITE_OK);
  Status full;
  int64_t widest = 0;
  for (int i = 1; i < 1000; ++i) {
    log->append(record(i, 8000));
    if (i % 20 == 0) log->flush();
    if (Status status = log->status(); !status.ok()) full = status;
    widest = std::max(widest, folder.bytes());
  }
  log->flush();
  INFO("widest " << widest);
  CHECK(widest <= options.max_bytes);
  CHECK(log->counters().rows_dropped > 500);
  CHECK_THAT(full.message(), Contains("a reader holds a transaction open"));
  CHECK(full.code() == StatusCode::kExhausted);
  sqlite3_exec(reader, "COMMIT", nullptr, nullptr, nullptr);
  sqlite3_close(reader);
  log->append(record(5000));
  log->flush();
  CHECK(log->status().message() == "");
  CHECK((*log->query({}))[0].id == "req_5000");
  CHECK(folder.bytes() <= options.max_bytes);
}

TEST_CASE("age: old rows go; rows from a clock that ran ahead wait for the budget") {
  LogFolder folder;
  auto options = folder.options();
  options.max_age_days = 1;
  int64_t now = utc_us(), day = 86400ll * 1000000;
  {
    auto log = RequestLog::open(options);
    for (int i = 0; i < 30; ++i) {
      ipc::RequestRecord r = record(i);
      r.finished_us = i % 3 == 0 ? now - 2 * day : i % 3 == 1 ? now + 400 * day : now;
      log->append(r);
    }
    log->flush();
  }
  auto log = RequestLog::open(options);
  log->append(record(100));  // the writer's first pass includes ageing
  log->flush();
  log.reset();
  CHECK(ask(folder.path(), "SELECT count(*) FROM requests") == "21");
}

TEST_CASE("a smaller budget takes effect: rows and pages go back") {
  LogFolder folder;
  auto options = folder.options();
  options.keep_text = true;
  options.max_bytes = 8 << 20;
  {
    auto log = RequestLog::open(options);
    for (int i = 0; i < 500; ++i) log->append(record(i, 8000));
  }
  CHECK(folder.bytes() > 3 << 20);
  options.max_bytes = 1 << 20;
  auto log = RequestLog::open(options);
  log->append(record(1000));
  log->flush();
  CHECK(log->status().message() == "");
  CHECK(folder.bytes() <= options.max_bytes);
  CHECK((*log->query({}))[0].id == "req_1000");
  CHECK((*log->query({}))[1].id == "req_499");
}
