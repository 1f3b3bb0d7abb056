// Request-log rows over HTTP, and as JSON.
#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/clock.h"
#include "ctl/http_client.h"
#include "ctl/log_fields.h"
#include "ctl/log_source.h"

namespace tandem::ctl {

namespace {

using Json = nlohmann::json;

// "2026-11-29T12:34:56.789012Z"; 0 for anything else.
int64_t parse_utc(const std::string& text) {
  tm parts{};
  const char* rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (!rest) return 0;
  const double fraction = *rest == '.' ? std::strtod(rest, nullptr) : 0;
  return static_cast<int64_t>(timegm(&parts)) * 1000000 + std::llround(fraction * 1e6);
}

void read(const Json& row, const char* name, std::string* out) {
  if (row.contains(name) && row[name].is_string()) *out = row[name].get<std::string>();
}
template <typename Number>
void read(const Json& row, const char* name, Number* out) {
  if (!row.contains(name) || !row[name].is_number()) return;
  if (std::is_integral_v<Number> && row[name].is_number_float()) return;  // no count of ours, and maybe beyond the type
  *out = row[name].get<Number>();
}

}  // namespace

Result<std::vector<ipc::RequestRecord>> rows_from_json(const std::string& body) {
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array()) {
    return data_loss("the server's answer is not a list of requests; is it a Tandem server?");
  }
  std::vector<ipc::RequestRecord> rows;
  for (const Json& row : json["data"]) {
    ipc::RequestRecord record;
    visit_fields(record, [&](const char* name, auto& field) { read(row, name, &field); });
    std::string received, finished;
    read(row, "received", &received);
    read(row, "finished", &finished);
    record.received_us = parse_utc(received);
    record.finished_us = parse_utc(finished);
    rows.push_back(std::move(record));
  }
  return rows;
}

std::string rows_to_json(const std::vector<ipc::RequestRecord>& rows) {
  nlohmann::ordered_json data = nlohmann::ordered_json::array();
  for (const ipc::RequestRecord& record : rows) {
    nlohmann::ordered_json row;
    row["received"] = format_utc(record.received_us);
    row["finished"] = format_utc(record.finished_us);
    visit_fields(record, [&](const char* name, const auto& field) { row[name] = field; });
    for (const char* text : {"prompt_text", "completion_text"}) {
      if (row[text] == "") row.erase(text);  // kept only with log.text
    }
    data.push_back(std::move(row));
  }
  const nlohmann::ordered_json document = {{"data", std::move(data)}};
  return document.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Result<std::vector<ipc::RequestRecord>> rows_from_server(const ServerOptions& server,
                                                         const ipc::RecordQuery& query) {
  std::string path = fmt::format("/v1/requests?limit={}", query.limit);
  if (query.since_us > 0) path += fmt::format("&since={}", query.since_us / 1000000);
  if (!query.status.empty()) path += "&status=" + percent_encode(query.status);
  if (!query.client.empty()) path += "&client=" + percent_encode(query.client);
  CHECK_ASSIGN(const HttpAnswer answer, http_get(server, path));
  if (answer.status != 200) return unavailable(describe_refusal(answer));
  return rows_from_json(answer.body);
}

}  // namespace tandem::ctl
