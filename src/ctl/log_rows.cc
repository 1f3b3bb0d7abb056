#include "ctl/log_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "base/clock.h"
#include "ctl/terminal_text.h"

namespace tandem::ctl {

namespace {

constexpr size_t kMaxCell = 60;
constexpr int64_t kSecond = 1000000;

struct Column {
  const char* title;
  bool is_number;
  std::string (*cell)(const ipc::RequestRecord&);
};

std::string ms(double value) { return fmt::format("{:.0f}", value); }

using Row = ipc::RequestRecord;
const std::array<Column, 13> kColumns = {{
    {"RECEIVED", false, [](const Row& r) { return format_utc(r.received_us).substr(0, 19) + "Z"; }},
    {"ID", false, [](const Row& r) { return r.id; }},
    {"CLIENT", false, [](const Row& r) { return r.client.empty() ? "-" : r.client; }},
    {"ENDPOINT", false, [](const Row& r) { return r.endpoint; }},
    {"STATUS", false, [](const Row& r) { return r.status; }},
    {"HTTP", true, [](const Row& r) { return std::to_string(r.http_status); }},
    {"PROMPT", true, [](const Row& r) { return std::to_string(r.prompt_tokens); }},
    {"CACHED", true, [](const Row& r) { return std::to_string(r.cached_tokens); }},
    {"COMPLETION", true, [](const Row& r) { return std::to_string(r.completion_tokens); }},
    {"QUEUE_MS", true, [](const Row& r) { return ms(r.queue_ms); }},
    {"TTFT_MS", true, [](const Row& r) { return ms(r.ttft_ms); }},
    {"TOTAL_MS", true, [](const Row& r) { return ms(r.total_ms); }},
    {"ERROR", false, [](const Row& r) { return r.error.empty() ? "-" : r.error; }},
}};

// One line, printable, bounded: an error text is foreign.
std::string tidy(const std::string& foreign) {
  std::string text = terminal_text(foreign, ' ');
  if (text.size() <= kMaxCell) return text;
  size_t end = kMaxCell - 3;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // no half character
  return text.substr(0, end) + "...";
}

}  // namespace

std::string format_table(const std::vector<ipc::RequestRecord>& rows) {
  std::vector<std::array<std::string, kColumns.size()>> cells(rows.size() + 1);
  std::array<size_t, kColumns.size()> widths{};
  for (size_t c = 0; c < kColumns.size(); ++c) {
    cells[0][c] = kColumns[c].title;
    for (size_t r = 0; r < rows.size(); ++r) cells[r + 1][c] = tidy(kColumns[c].cell(rows[r]));
    for (const auto& line : cells) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string out;
  for (const auto& line : cells) {
    for (size_t c = 0; c < kColumns.size(); ++c) {
      const bool is_last = c + 1 == kColumns.size();
      if (kColumns[c].is_number) {
        out += fmt::format("{:>{}}", line[c], widths[c]);
      } else {
        out += is_last ? line[c] : fmt::format("{:<{}}", line[c], widths[c]);
      }
      out += is_last ? "\n" : "  ";
    }
  }
  return out;
}

Result<int64_t> parse_since(const std::string& text, int64_t now_us) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && number >= 0 && number < 100000000000) {
    if (rest == end) return number * kSecond;
    const std::string_view unit(rest, static_cast<size_t>(end - rest));
    const int64_t seconds = unit == "s"   ? 1
                            : unit == "m" ? 60
                            : unit == "h" ? 3600
                            : unit == "d" ? 86400
                                          : 0;
    if (seconds > 0 && number < 1000000)
      return std::max<int64_t>(0, now_us - number * seconds * kSecond);
  }
  for (const char* form : {"%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"}) {
    tm parts{};
    const char* after = strptime(text.c_str(), form, &parts);
    if (after && *after == 0) return static_cast<int64_t>(timegm(&parts)) * kSecond;
  }
  return invalid_argument(
      "--since: must be a span (90s, 15m, 2h, 7d), a UTC time (2026-11-29T12:34:56Z) or seconds "
      "since 1970");
}

}  // namespace tandem::ctl
