// Rows of the request log: table, JSON both ways, database, time spans.
#include "ctl/log_rows.h"

#include <sqlite3.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "ctl/log_source.h"

namespace tandem::ctl {

namespace {

ipc::RequestRecord sample() {
  ipc::RequestRecord r;
  r.id = "req_1";
  r.received_us = 1795955696123456;  // 2026-11-29T12:34:56.123456Z
  r.finished_us = r.received_us + 250000;
  r.endpoint = "chat";
  r.model = "m";
  r.priority = "normal";
  r.prompt_tokens = 31;
  r.completion_tokens = 7;
  r.total_ms = 250.4;
  r.ttft_ms = 99.6;
  r.status = "stop";
  r.http_status = 200;
  r.seed = 18446744073709551615ull;
  r.error = "";
  return r;
}

}  // namespace

TEST_CASE("table: aligned, tidy, one line a row") {
  ipc::RequestRecord bad = sample();
  bad.id = "req_22";
  bad.error = "first\nsecond \x1b[31m" + std::string(100, 'x');
  const std::string table = format_table({sample(), bad});
  CHECK(std::count(table.begin(), table.end(), '\n') == 3);
  CHECK(table.find("2026-11-29T12:34:56Z  req_1   -") != std::string::npos);
  CHECK(table.find("req_22") != std::string::npos);
  CHECK(table.find('\x1b') == std::string::npos);
  CHECK(table.find("first second") != std::string::npos);
  CHECK(table.find(std::string(61, 'x')) == std::string::npos);
  CHECK(table.find("  250  ") != std::string::npos);
  CHECK(table.find("  100  ") != std::string::npos);
  CHECK(format_table({}).rfind("RECEIVED", 0) == 0);
}

TEST_CASE("a long error with multi-byte characters is cut between characters") {
  ipc::RequestRecord r = sample();
  for (int i = 0; i < 40; ++i) r.error += "é";
  const std::string table = format_table({r});
  CHECK(table.find("é...\n") != std::string::npos);
}

TEST_CASE("rows survive JSON") {
  const std::string json = rows_to_json({sample()});
  const auto rows = rows_from_json(json);
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 1);
  const ipc::RequestRecord& r = rows->front();
  CHECK(r.id == "req_1");
  CHECK(r.received_us == sample().received_us);
  CHECK(r.finished_us == sample().finished_us);
  CHECK(r.seed == 18446744073709551615ull);
  CHECK(r.total_ms == 250.4);
  CHECK(json.find("prompt_text") == std::string::npos);
}

TEST_CASE("answers that are no list of requests are refused") {
  for (const char* body :
       {"", "null", "[]", "{}", "{\"data\":3}", "<html>", "{\"data\":[", "\xFF"}) {
    CHECK_FALSE(rows_from_json(body).ok());
  }
  const auto odd =
      rows_from_json("{\"data\":[{\"id\":5,\"received\":\"x\",\"total_ms\":\"y\"}, 7]}");
  REQUIRE(odd.ok());
  CHECK(odd->size() == 2);
  CHECK(odd->front().id.empty());
}

TEST_CASE("since: spans, times, seconds") {
  const int64_t now = 1000000 * int64_t{1000000};
  CHECK(*parse_since("90s", now) == now - 90 * 1000000);
  CHECK(*parse_since("15m", now) == now - 900 * int64_t{1000000});
  CHECK(*parse_since("2h", now) == now - 7200 * int64_t{1000000});
  CHECK(*parse_since("1d", now) == now - 86400 * int64_t{1000000});
  CHECK(*parse_since("999999d", now) == 0);
  CHECK(*parse_since("2026-11-29T12:34:56Z", now) == 1795955696000000);
  CHECK(*parse_since("2026-11-29", now) == 1795910400000000);
  CHECK(*parse_since("1795955696", now) == 1795955696000000);
  for (const char* bad :
       {"", "h", "5x", "-5m", "yesterday", "2026-13-45", "2026-11-29T12:34:56Zjunk", "1e9"}) {
    INFO(bad);
    CHECK_FALSE(parse_since(bad, now).ok());
  }
}

TEST_CASE("rows come straight from a database") {
  const std::string path = "/tmp/tandem_ctl_test_" + std::to_string(getpid()) + ".db";
  std::remove(path.c_str());
  std::ifstream in(std::string(TANDEM_SOURCE_DIR) + "/src/requestlog/migrations/001_requests.sql");
  const std::string schema{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(!schema.empty());
  sqlite3* db = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &db) == SQLITE_OK);
  REQUIRE(sqlite3_exec(db, schema.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  const auto insert = [&](const char* id, int finished_us, const char* status, const char* client,
                          double total_ms, const char* seed) {
    const std::string sql = "INSERT INTO requests VALUES (NULL, '" + std::string(id) + "', 1, " +
                            std::to_string(finished_us) + ", '" + client +
                            "', 'chat', 'm', 'normal', 1, 2, 0, 0, 0, 0, " +
                            std::to_string(total_ms) + ", 0, '" + status + "', '" + status +
                            "', 200, '', '', '" + seed + "', 1, 1, '', '', '')";
    REQUIRE(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  };
  insert("a", 10, "stop", "x", 1.5, "18446744073709551615");
  insert("b", 20, "length", "x", 2.5, "7");
  insert("c", 30, "stop", "y", 3.5, "0");
  sqlite3_close(db);
  ipc::RecordQuery query;
  auto rows = rows_from_database(path, query);
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 3);
  CHECK(rows->at(0).id == "c");
  CHECK(rows->at(2).id == "a");
  CHECK(rows->at(2).seed == UINT64_MAX);
  CHECK(rows->at(1).total_ms == 2.5);
  query.status = "stop";
  query.client = "x";
  CHECK(rows_from_database(path, query)->size() == 1);
  query = {};
  query.since_us = 20;
  query.limit = 1;
  CHECK(rows_from_database(path, query)->at(0).id == "c");
  std::remove(path.c_str());
  CHECK_FALSE(rows_from_database(path, query).ok());
  CHECK_FALSE(rows_from_database("/dev/null", query).ok());
}

}  // namespace tandem::ctl
