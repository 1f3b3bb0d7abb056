// Process log: one event, one line, `<priority>event key=value …` on stderr, as journald reads it. Written
// by a background thread; a full queue overwrites the oldest lines, never stalls the caller. Lines of one
// kind (the event text) are limited to a burst per second; what was left out is counted in the next line.
// Thread-safe. No prompt or completion text unless a configuration key says so.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// One key=value. Values are quoted and escaped when they hold blanks, quotes or control bytes.
struct LogField {
  std::string_view key;
  std::string value;
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, int64_t v) : key(k), value(std::to_string(v)) {}
  LogField(std::string_view k, uint64_t v) : key(k), value(std::to_string(v)) {}
  LogField(std::string_view k, int v) : key(k), value(std::to_string(v)) {}
  LogField(std::string_view k, unsigned v) : key(k), value(std::to_string(v)) {}
  LogField(std::string_view k, double v);
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
};

// Call once per process, before other threads log; `process` ("tandemd", "worker") goes into each line.
void log_init(std::string_view process, LogLevel level);
void log_set_level(LogLevel level);
bool log_parse_level(std::string_view name, LogLevel* level);  // "debug", "info", "warn", "error"
void log_flush();  // waits until the lines so far are written, two seconds at most
void log_line(LogLevel level, std::string_view event, std::initializer_list<LogField> fields);

inline void log_debug(std::string_view e, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kDebug, e, f); }
inline void log_info(std::string_view e, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kInfo, e, f); }
inline void log_warn(std::string_view e, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kWarn, e, f); }
inline void log_error(std::string_view e, std::initializer_list<LogField> f = {}) { log_line(LogLevel::kError, e, f); }

// Formats one line without priority and newline (for tests and for `last fault` texts).
std::string log_format(std::string_view event, std::initializer_list<LogField> fields);

}  // namespace tandem
