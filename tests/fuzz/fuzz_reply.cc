// What a server, or the package index, answers to `tandem`. First byte: which reader; rest: the bytes.
#include "ctl/chat_answer.h"
#include "ctl/http_client.h"
#include "ctl/log_source.h"
#include "ctl/status_text.h"
#include "ctl/terminal_text.h"
#include "ctl/wheel.h"
#include "fuzz_target.h"

namespace {

using namespace tandem::ctl;

bool obeys_nothing(const std::string& text) { return terminal_text(text, '?', "\n") == text; }

// However the bytes arrive, the answer is the same.
void check_chat(std::string_view bytes) {
  ChatAnswer whole, pieces;
  const std::string text = whole.feed(bytes);
  FUZZ_REQUIRE(text == whole.text());
  std::string together;
  const size_t step = 1 + bytes.size() / 5;
  for (size_t at = 0; at < bytes.size(); at += step) together += pieces.feed(bytes.substr(at, step));
  FUZZ_REQUIRE(together == text);
  FUZZ_REQUIRE(pieces.error() == whole.error() && pieces.is_done() == whole.is_done());
  FUZZ_REQUIRE(pieces.finish_reason() == whole.finish_reason());
  FUZZ_REQUIRE(obeys_nothing(whole.error()) && obeys_nothing(whole.finish_reason()));
}

void check_index(const std::string& body) {
  const auto wheel = parse_wheel_index(body, "name");
  if (!wheel.ok()) return;
  FUZZ_REQUIRE(!wheel->url.empty() && wheel->sha256.size() == 64 && wheel->bytes > 0);
}

void check_rows(const std::string& body) {
  const auto rows = rows_from_json(body);
  if (!rows.ok()) return;
  const auto again = rows_from_json(rows_to_json(*rows));
  FUZZ_REQUIRE(again.ok() && again->size() == rows->size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  if (size == 0) return 0;
  const std::string body(tandem::fuzz::view(data + 1, size - 1));
  switch (data[0] % 5) {
    case 0: check_chat(body); break;
    case 1: check_index(body); break;
    case 2: check_rows(body); break;
    case 3:
      if (const auto text = status_text(body); text.ok()) FUZZ_REQUIRE(obeys_nothing(*text));
      break;
    default: FUZZ_REQUIRE(obeys_nothing(describe_refusal({500, body}))); break;
  }
  return 0;
}
