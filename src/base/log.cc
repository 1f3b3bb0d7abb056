#include "base/log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/clock.h"

namespace tandem {
namespace {

constexpr int kBurstPerSecond =
    20;  // lines of one event kind per second before they are counted only
constexpr size_t kQueueLines = 8192;  // about 1 MB at worst
constexpr std::chrono::seconds kFlushWait{
    2};  // a stderr that nobody reads must not keep a process from ending

// stderr, one write() per line so that lines of several processes do not mix.
class StderrSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    line_.assign(1, '<');
    line_ += msg.level >= spdlog::level::err    ? '3'
             : msg.level == spdlog::level::warn ? '4'
             : msg.level == spdlog::level::info ? '6'
                                                : '7';
    line_ += '>';
    line_.append(msg.payload.data(), msg.payload.size());
    line_ += '\n';
    [[maybe_unused]] ssize_t n = ::write(STDERR_FILENO, line_.data(), line_.size());
  }
  // Runs on the pool's thread, after every line that was queued before the flush.
  void flush_() override {
    std::lock_guard lock(flush_mutex_);
    ++flushes_;
    flushed_.notify_all();
  }

 public:
  void wait_for_flush(uint64_t ticket) {
    std::unique_lock lock(flush_mutex_);
    flushed_.wait_for(lock, kFlushWait, [&] { return flushes_ >= ticket; });
  }

 private:
  std::mutex flush_mutex_;  // guards flushes_
  std::condition_variable flushed_;
  uint64_t flushes_ = 0;
  std::string line_;
};

struct LogState {
  std::string process = "tandem";
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<StderrSink> sink;
  std::shared_ptr<spdlog::async_logger> logger;
  std::mutex flush_mutex;  // guards flushes_asked, orders the flushes in the queue
  uint64_t flushes_asked = 0;
  std::atomic<LogLevel> level{LogLevel::kInfo};
  struct Window {
    int64_t start_us = 0;
    int written = 0;
    int64_t left_out = 0;
  };
  std::mutex mutex;  // guards windows
  std::unordered_map<std::string, Window> windows;
};

LogState& state() {
  static LogState* s = new LogState;  // never destroyed: threads may log while the process exits
  return *s;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  constexpr spdlog::level::level_enum kMap[] = {spdlog::level::debug, spdlog::level::info,
                                                spdlog::level::warn, spdlog::level::err};
  return kMap[static_cast<int>(level)];
}

void append_value(std::string& out, std::string_view value) {
  bool plain = !value.empty();
  for (char c : value) plain = plain && c > ' ' && c != '"' && c != '=' && c != '\\' && c != 0x7f;
  if (plain) {
    out += value;
    return;
  }
  out += '"';
  for (char c : value) {
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned char>(c));
      out += hex;
    } else {
      out += c;
    }
  }
  out += '"';
}

// Counts the line against its event's window. Returns false when it must be left out.
bool admit_line(std::string_view event, int64_t* left_out) {
  LogState& s = state();
  std::lock_guard lock(s.mutex);
  if (s.windows.size() > 512) s.windows.clear();
  LogState::Window& w = s.windows[std::string(event)];
  int64_t now = monotonic_us();
  if (now - w.start_us >= 1'000'000) {
    *left_out = w.left_out;
    w = {now, 0, 0};
  }
  if (++w.written <= kBurstPerSecond) return true;
  ++w.left_out;
  return false;
}

}  // namespace

LogField::LogField(std::string_view k, double v) : key(k) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", v);
  value = text;
}

void log_init(std::string_view process, LogLevel level) {
  LogState& s = state();
  s.process = process;
  s.pool = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  s.sink = std::make_shared<StderrSink>();
  s.flushes_asked = 0;
  s.logger = std::make_shared<spdlog::async_logger>("tandem", s.sink, s.pool,
                                                    spdlog::async_overflow_policy::overrun_oldest);
  s.logger->set_level(spdlog::level::debug);
  log_set_level(level);
}

void log_set_level(LogLevel level) { state().level = level; }

bool log_parse_level(std::string_view name, LogLevel* level) {
  constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};
  for (int i = 0; i < 4; ++i) {
    if (name == kNames[i]) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void log_flush() {
  LogState& s = state();
  if (!s.logger) return;
  uint64_t ticket;
  {
    std::lock_guard lock(s.flush_mutex);
    ticket = ++s.flushes_asked;
    s.logger->flush();
  }
  s.sink->wait_for_flush(ticket);
}

std::string log_format(std::string_view event, std::initializer_list<LogField> fields) {
  std::string line(event);
  for (const LogField& f : fields) {
    line += ' ';
    line += f.key;
    line += '=';
    append_value(line, f.value);
  }
  return line;
}

void log_line(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  LogState& s = state();
  if (level < s.level.load(std::memory_order_relaxed)) return;
  int64_t left_out = 0;
  if (!admit_line(event, &left_out)) return;
  std::string line = log_format(event, fields);
  line += " process=" + s.process;
  if (left_out > 0) line += " left_out=" + std::to_string(left_out);
  if (s.logger) {
    s.logger->log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
  } else {
    std::fprintf(stderr, "<%d>%s\n", level == LogLevel::kError ? 3 : 6, line.c_str());
  }
}

}  // namespace tandem
