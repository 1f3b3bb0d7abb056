#include "requestlog/record_columns.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>
#include <vector>

namespace tandem {
namespace {

constexpr size_t kMaxNameBytes = 1024;  // ids, names, reasons: ours or an operator's
constexpr size_t kMaxErrorBytes = 4096;
constexpr size_t kRowOverheadBytes = 256;

using Record = ipc::RequestRecord;

struct Column {
  const char* name;
  std::string Record::*text = nullptr;
  int64_t Record::*integer = nullptr;
  double Record::*real = nullptr;
};
Column text(const char* name, std::string Record::*field) {
  return {name, field, nullptr, nullptr};
}
Column integer(const char* name, int64_t Record::*field) { return {name, nullptr, field, nullptr}; }
Column real(const char* name, double Record::*field) { return {name, nullptr, nullptr, field}; }

// http_status and seed have types of their own and come last.
const std::vector<Column>& columns() {
  static const std::vector<Column> kColumns = {
      text("id", &Record::id),
      integer("received_us", &Record::received_us),
      integer("finished_us", &Record::finished_us),
      text("client", &Record::client),
      text("endpoint", &Record::endpoint),
      text("model", &Record::model),
      text("priority", &Record::priority),
      integer("prompt_tokens", &Record::prompt_tokens),
      integer("completion_tokens", &Record::completion_tokens),
      integer("cached_tokens", &Record::cached_tokens),
      real("queue_ms", &Record::queue_ms),
      real("prefill_ms", &Record::prefill_ms),
      real("decode_ms", &Record::decode_ms),
      real("total_ms", &Record::total_ms),
      real("ttft_ms", &Record::ttft_ms),
      text("status", &Record::status),
      text("finish_reason", &Record::finish_reason),
      text("degradation", &Record::degradation),
      text("weights", &Record::weights),
      integer("worker_generation", &Record::worker_generation),
      integer("n_dispatches", &Record::n_dispatches),
      text("error", &Record::error),
      text("prompt_text", &Record::prompt_text),
      text("completion_text", &Record::completion_text),
  };
  return kColumns;
}

std::string column_names() {
  std::string names;
  for (const Column& c : columns()) names += std::string(c.name) + ", ";
  return names + "http_status, seed";
}

// Bytes of the valid UTF-8 sequence at the front of `s`; 0 if there is none (RFC 3629).
size_t sequence_bytes(std::string_view s) {
  auto byte = [&s](size_t i) { return static_cast<unsigned char>(s[i]); };
  unsigned char b = byte(0);
  if (b < 0x80) return b == 0 ? 0 : 1;  // NUL would end the text for many readers
  size_t n = b >= 0xc2 && b <= 0xdf ? 2 : (b & 0xf0) == 0xe0 ? 3 : b >= 0xf0 && b <= 0xf4 ? 4 : 0;
  if (n == 0 || s.size() < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  unsigned char second = byte(1);
  bool is_overlong = (b == 0xe0 && second < 0xa0) || (b == 0xf0 && second < 0x90);
  bool is_out_of_range = (b == 0xed && second > 0x9f) || (b == 0xf4 && second > 0x8f);
  return is_overlong || is_out_of_range ? 0 : n;
}

void clean_text(std::string* text) {
  std::string_view rest = *text;
  std::string out;
  out.reserve(text->size());
  while (!rest.empty()) {
    size_t n = sequence_bytes(rest);
    if (n == 0)
      out += "\xef\xbf\xbd";
    else
      out += rest.substr(0, n);
    rest.remove_prefix(std::max<size_t>(n, 1));
  }
  *text = std::move(out);
}

void cut_text(size_t max_bytes, std::string* text) {
  if (text->size() <= max_bytes) return;
  std::string mark = "… [cut, " + std::to_string(text->size()) + " bytes]";
  text->resize(max_bytes);
  *text += mark;
}

double finite(double v) { return std::isfinite(v) ? v : 0.0; }

}  // namespace

std::string insert_sql() {
  std::string marks = "?";
  for (size_t i = 0; i < columns().size() + 1; ++i) marks += ", ?";
  return "INSERT INTO requests (" + column_names() + ") VALUES (" + marks + ")";
}

std::string select_sql() { return "SELECT " + column_names() + " FROM requests"; }

void bind_record(const Record& record, Statement* s) {
  int i = 0;
  for (const Column& c : columns()) {
    ++i;
    if (c.text)
      s->bind(i, std::string_view(record.*c.text));
    else if (c.integer)
      s->bind(i, record.*c.integer);
    else
      s->bind(i, finite(record.*c.real));
  }
  s->bind(++i, static_cast<int64_t>(record.http_status));
  s->bind(++i, std::string_view(std::to_string(record.seed)));
}

Record read_record(const Statement& s) {
  Record record;
  int i = 0;
  for (const Column& c : columns()) {
    if (c.text)
      record.*c.text = s.column_text(i);
    else if (c.integer)
      record.*c.integer = s.column_integer(i);
    else
      record.*c.real = s.column_real(i);
    ++i;
  }
  record.http_status = static_cast<int>(s.column_integer(i++));
  std::string seed = s.column_text(i);
  std::from_chars(seed.data(), seed.data() + seed.size(), record.seed);
  return record;
}

void cut_record(size_t max_text_bytes, Record* record) {
  for (const Column& c : columns()) {
    if (!c.text) continue;
    bool is_body = c.text == &Record::prompt_text || c.text == &Record::completion_text;
    size_t max_bytes = is_body                    ? max_text_bytes
                       : c.text == &Record::error ? kMaxErrorBytes
                                                  : kMaxNameBytes;
    cut_text(max_bytes, &(record->*c.text));
  }
}

void clean_record(Record* record) {
  for (const Column& c : columns())
    if (c.text) clean_text(&(record->*c.text));
}

size_t record_bytes(const Record& record) {
  size_t n = kRowOverheadBytes;
  for (const Column& c : columns())
    if (c.text) n += (record.*c.text).size();
  return n;
}

}  // namespace tandem
