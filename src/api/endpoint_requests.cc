// GET /v1/requests?since=&until=&status=&client=&id=&limit=: rows of the request log, newest first.
#include <charconv>
#include <cmath>
#include <ctime>

#include "api/endpoints.h"
#include "api/json_fields.h"
#include "api/request_rows.h"

namespace tandem::api {
namespace {

constexpr int kMaxRows = 10000;
constexpr const char* kStatuses[] = {"stop", "length", "deadline", "aborted", "failed", "cancelled", "rejected"};

ApiError bad(const char* name, const std::string& rule) {
  return api_error("invalid_value", "query parameter `" + std::string(name) + "` " + rule, name);
}

// Seconds since 1970, or "2026-11-29T12:34:56[.fraction]Z".
std::optional<int64_t> parse_time_us(const std::string& text) {
  double seconds = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size())
    return seconds >= 0 && seconds < 1e11 ? std::optional(static_cast<int64_t>(seconds * 1e6)) : std::nullopt;
  tm parts{};
  const char* rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  double fraction = 0;
  const char* last = text.data() + text.size();
  if (*rest == '.') {
    auto [after, bad_fraction] = std::from_chars(rest, last, fraction, std::chars_format::fixed);
    if (bad_fraction != std::errc()) return std::nullopt;
    rest = after;
  }
  if (rest + 1 != last || *rest != 'Z') return std::nullopt;
  return static_cast<int64_t>(timegm(&parts)) * 1'000'000 + std::llround(fraction * 1e6);
}

std::optional<ApiError> read_parameter(const std::string& name, const std::string& value, ipc::RecordQuery* query) {
  if (name == "since" || name == "until") {
    auto us = parse_time_us(value);
    if (!us) return bad(name.c_str(), "must be seconds since 1970 or a time like 2026-11-29T12:34:56Z");
    (name == "since" ? query->since_us : query->until_us) = *us;
  } else if (name == "status") {
    for (const char* status : kStatuses)
      if (value == status) query->status = value;
    if (query->status != value) return bad("status", "must be one of stop, length, deadline, aborted, failed, cancelled, rejected");
  } else if (name == "client") {
    query->client = value;
  } else if (name == "id") {
    query->id = value;
  } else if (name == "limit") {
    auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), query->limit);
    if (error != std::errc() || end != value.data() + value.size() || query->limit < 1 || query->limit > kMaxRows)
      return bad("limit", "must be an integer >= 1 and <= " + std::to_string(kMaxRows));
  } else {
    return api_error("invalid_value", "query parameter `" + safe_word(name) + "` is not known; use since, until, status, client, id, limit");
  }
  return std::nullopt;
}

}  // namespace

HttpReply handle_requests(const ApiContext& api, HttpRequest& http) {
  ipc::RecordQuery query;
  for (const auto& [name, value] : http.query)
    if (auto error = read_parameter(name, value, &query)) return error_reply(*error);
  auto rows = api.service.query_log(query);
  if (!rows.ok()) return error_reply(rows.error());
  return json_reply(request_rows_json(rows.value()));
}

}  // namespace tandem::api
