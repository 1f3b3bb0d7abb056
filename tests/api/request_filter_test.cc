// The deny list (field case C-43 for its patterns) and the filter in front of prefill.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "api/deny_list.h"
#include "base/clock.h"
#include "server_fixture.h"
#include "temp_file.h"

namespace tandem::api {
namespace {

std::shared_ptr<const DenyList> list_of(const std::string& text) {
  auto list = DenyList::parse(text, "deny");
  if (!list.ok()) FAIL(list.status().message());
  return *list;
}
int line_of(const DenyList& list, const std::string& text) {
  auto match = list.find(text);
  return match ? match->line : 0;
}
std::string error_of(const std::string& text) {
  auto list = DenyList::parse(text, "deny");
  return list.ok() ? "" : list.status().message();
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string chat(const std::string& content) { return R"({"messages":[{"role":"user","content":")" + content + "\"}]}"; }

}  // namespace

TEST_CASE("deny list: words match whole words in every case and width") {
  auto list = list_of("# comment\n\nstraße\nred   button\n爆弾\nnaïve\n");
  CHECK(list->n_rules() == 4);
  for (const char* text : {"straße", "STRASSE", "Die Straße.", "a strasse b", "ＳＴＲＡＳＳＥ", "stra\u00ADsse", "stra\u200Bsse"}) {
    INFO(text);
    CHECK(line_of(*list, text) == 3);
  }
  for (const char* text : {"Red button", "the red, BUTTON!", "red\n\nbutton", "red-button"}) CHECK(line_of(*list, text) == 4);
  CHECK(line_of(*list, "この爆弾は") == 5);
  CHECK(line_of(*list, "nai\u0308ve") == 6);  // composed and decomposed are one
  for (const char* text : {"", "strass", "strassen", "redbutton", "red big button", "button red", "naive", "爆 と", "comment"}) {
    INFO(text);
    CHECK(line_of(*list, text) == 0);
  }
}

TEST_CASE("deny list: patterns ignore case in every script and see the text as it is") {
  auto list = list_of("re: \\bcard\\s+\\d{4}\\b\nre:^привет$\n");
  CHECK(line_of(*list, "My CARD  1234.") == 1);
  CHECK(line_of(*list, "card 12345") == 0);
  CHECK(line_of(*list, "x\nПРИВЕТ\ny") == 2);
}

TEST_CASE("deny list: broken rules are refused with file, line and reason") {
  CHECK(has(error_of("ok\nre:(a"), "deny:2: the pattern is broken at byte 2: "));
  CHECK(has(error_of("re:*"), "deny:1: "));
  CHECK(has(error_of("re:\xff"), "deny:1: "));
  CHECK(has(error_of("re:"), "1 to 1024 bytes"));
  CHECK(has(error_of("re:" + std::string(1025, 'a')), "1 to 1024 bytes, got 1025"));
  CHECK(has(error_of("re:x*"), "would refuse every prompt"));
  CHECK(has(error_of("re:a\\C"), "deny:1: "));
  CHECK(has(error_of("!!!"), "needs a letter or digit"));
  CHECK(has(error_of("re:" + std::string(60, '(') + "a" + std::string(60, ')')), "deny:1: "));
  CHECK(has(error_of("re:a{0,100000}"), "deny:1: "));
  int64_t start = monotonic_us();
  CHECK(error_of("re:((((a{1,500}){1,500}){1,500}){1,500})b") != "");
  CHECK(monotonic_us() - start < 1'000'000);
  std::string many;
  for (int i = 0; i < 300; ++i) many += "re:a" + std::to_string(i) + "\n";
  CHECK(has(error_of(many), "deny:257: more than 256 patterns"));
}

TEST_CASE("deny list: a pattern that explodes is stopped soon, and the text counts as denied") {
  auto list = list_of("re:(a+)+$x|(a|aa)+$y|^(([a-z])+.)+[A-Z]([a-z])+$b\n");
  int64_t start = monotonic_us();
  auto match = list->find(std::string(5000, 'a') + "!");
  CHECK(monotonic_us() - start < 2'000'000);
  REQUIRE(match);
  CHECK(match->is_exhausted);
}

TEST_CASE("deny list: ten thousand words over a long prompt in one pass") {
  std::string rules, text;
  for (int i = 0; i < 10'000; ++i) rules += "word" + std::to_string(i) + " tail\n";
  for (int i = 0; i < 200'000; ++i) text += "word" + std::to_string(i % 10'000) + " ";
  auto list = list_of(rules);
  int64_t start = monotonic_us();
  CHECK(line_of(*list, text) == 0);
  CHECK(line_of(*list, text + "tail") == 10'000);
  CHECK(monotonic_us() - start < 5'000'000);
}

TEST_CASE("filter: refused with a code before anything is prepared, and the word is told to nobody") {
  TempFile deny("forbidden\n");
  ServerFixture f;
  f.config.filter_deny_list_file = deny.path;
  int port = f.start();
  struct Row {
    const char* path;
    std::string body;
    const char* param;
  };
  for (const Row& row : {Row{"/v1/chat/completions", chat("a FORBIDDEN thing"), "messages[0]"},
                         Row{"/v1/chat/completions",
                             R"({"messages":[{"role":"system","content":"ok"},{"role":"user","content":[{"type":"text","text":"for"},)"
                             R"({"type":"text","text":"bidden Forbidden"}]}]})",
                             "messages[1]"},
                         Row{"/v1/completions", R"({"prompt":"forbidden"})", "prompt"},
                         Row{"/v1/completions", R"({"prompt":["fine","forbidden"]})", "prompt"}}) {
    INFO(row.body);
    RawReply reply = fetch(port, post(row.path, row.body));
    CHECK(reply.status == 403);
    JsonValue v = json(reply.body);
    CHECK(str(v, "error", "code") == "request_filtered");
    CHECK(str(v, "error", "param") == row.param);
    CHECK(!has(reply.body, "orbidden"));
  }
  CHECK(f.service.n_submitted == 0);
  REQUIRE(f.service.rejected().size() == 4);
  for (const auto& row : f.service.rejected()) {
    CHECK(row.status == "rejected");
    CHECK(row.http_status == 403);
    CHECK(!has(row.error, "orbidden"));
  }
  CHECK(fetch(port, post("/v1/chat/completions", chat("fine"))).status == 200);
  CHECK(fetch(port, post("/v1/completions", R"({"prompt":"fine"})")).status == 200);
  // The template is the model's, not the client's: its words are not looked at.
  CHECK(fetch(port, post("/apply-template", chat("forbidden"))).status == 200);
}

TEST_CASE("filter: token ids are looked at as the text they stand for") {
  TempFile deny("ab\n");
  ServerFixture f;
  f.config.filter_deny_list_file = deny.path;
  f.service.prepare_text = [](const ipc::Prepare& p) { return p.kind == ipc::Prepare::Kind::kIds ? "xx ab yy" : p.text; };
  int port = f.start();
  CHECK(fetch(port, post("/v1/completions", R"({"prompt":[1,2,3]})")).status == 403);
  CHECK(f.service.n_submitted == 0);
}

TEST_CASE("filter: off by default, on for all or for the keys that say so") {
  TempFile deny("forbidden\n");
  TempFile users("on:" + sha256_of_text("k-on") + ":high:filtered\noff:" + sha256_of_text("k-off") + ":unfiltered\nplain:" +
                 sha256_of_text("k-plain") + "\n");
  auto status = [&](int port, const char* key) {
    return fetch(port, post("/v1/chat/completions", chat("forbidden"), "Authorization: Bearer " + std::string(key) + "\r\n")).status;
  };
  for (bool is_on : {false, true})
    for (bool all : {false, true}) {
      ServerFixture f;
      f.config.auth_user_keys_file = users.path;
      if (is_on) f.config.filter_deny_list_file = deny.path;
      f.config.filter_all_clients = all;
      int port = f.start();
      INFO("is_on " << is_on << " all " << all);
      CHECK(status(port, "k-on") == (is_on ? 403 : 200));
      CHECK(status(port, "k-off") == 200);
      CHECK(status(port, "k-plain") == (is_on && all ? 403 : 200));
    }
}

TEST_CASE("filter: the list is read again; a broken one changes nothing and says why") {
  TempFile deny("one\n");
  ServerFixture f;
  f.config.filter_deny_list_file = deny.path;
  int port = f.start();
  auto status = [&](const char* word) { return fetch(port, post("/v1/chat/completions", chat(word))).status; };
  CHECK(status("one") == 403);
  deny.write("two\n");
  CHECK(status("two") == 200);
  CHECK(f.server->reload_files().ok());
  CHECK(status("one") == 200);
  CHECK(status("two") == 403);
  deny.write("three\nre:(\n");
  Status broken = f.server->reload_files();
  CHECK(has(broken.message(), deny.path + ":2: the pattern is broken"));
  CHECK(status("two") == 403);
  CHECK(status("three") == 200);
  std::remove(deny.path.c_str());
  CHECK(!f.server->reload_files().ok());
  CHECK(status("two") == 403);
  ServerFixture g;  // at a start there is no old list to keep
  g.config.filter_deny_list_file = deny.path;
  g.config.server_listen = "127.0.0.1:0";
  CHECK(!ApiServer::start(g.config, &g.service).ok());
}

}  // namespace tandem::api
