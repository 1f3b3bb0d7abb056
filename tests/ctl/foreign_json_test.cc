// JSON of servers and indexes that are not ours: members of any type, none of which may throw.
#include <catch2/catch.hpp>
#include <limits>

#include "ctl/chat_answer.h"
#include "ctl/http_client.h"
#include "ctl/json_read.h"
#include "ctl/log_source.h"
#include "ctl/terminal_text.h"
#include "ctl/wheel.h"

namespace tandem::ctl {
namespace {

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }

ChatAnswer answer_of(const std::string& bytes) {
  ChatAnswer answer;
  answer.feed(bytes);
  return answer;
}

}  // namespace

TEST_CASE("json: what is missing or of another type is not there") {
  const JsonDocument json(R"({"a":{"n":3.9,"big":1e300,"low":-1e300,"u":18446744073709551615,"t":"x\u001b[31m","l":[1,"y"],"f":true},"s":5})");
  CHECK(json.number("a.n") == 3.9);
  CHECK(json.count("a.n") == 3);
  CHECK(json.count("a.big") == std::numeric_limits<int64_t>::max());
  CHECK(json.count("a.low") == std::numeric_limits<int64_t>::min());
  CHECK(json.count("a.u") == std::numeric_limits<int64_t>::max());
  CHECK(json.text("a.t") == "x?[31m");
  CHECK(json.raw_text("a.t") == "x\x1b[31m");
  CHECK(json.flag("a.f") == true);
  REQUIRE(json.list("a.l").size() == 2);
  CHECK(json.list("a.l")[1].text("") == "y");
  CHECK(json.find("a").number("n") == 3.9);
  for (const char* path : {"b", "a.x", "s.n", "a.l.n", "a.t.n", "a.f.n"}) {
    INFO(path);
    CHECK_FALSE(json.find(path).is_there());
    CHECK_FALSE(json.find(path).find("more").is_there());
    CHECK(!json.number(path));
    CHECK(json.count(path) == 0);
    CHECK(!json.text(path));
    CHECK(!json.flag(path));
    CHECK(json.list(path).empty());
  }
  CHECK(!json.text("s"));
  CHECK(json.list("a").empty());
  CHECK(!json.error());
  CHECK(JsonDocument(R"({"error":null})").error() == "an error without a reason");
  CHECK(JsonDocument(R"({"error":{"message":7}})").error() == "an error without a reason");
  for (const char* bytes : {"", "{", "\xff", "7", "null"}) CHECK_FALSE(JsonDocument(bytes).is_object());
}

TEST_CASE("terminal: nothing in a text is an order") {
  CHECK(terminal_text("a\x1b]52;c;eA\a\r\x7f") == "a?]52;c;eA???");
  CHECK(terminal_text("\xC2\x9B""31m \xC2\xA0\xC3\x9B é 🙂") == "?31m \xC2\xA0\xC3\x9B é 🙂");
  CHECK(terminal_text("a\n\tb\x1b\n", '?', "\n\t") == "a\n\tb?\n");
  CHECK(terminal_text("\xC2") == "\xC2");
}

TEST_CASE("chat: text, the reason it ended, and events that are not as they should be") {
  const ChatAnswer good = answer_of(event(R"({"choices":[{"delta":{"content":"a\n"}}]})") + ": keep-alive\n\n" +
                                    event(R"({"choices":[{"delta":{},"finish_reason":"length"}]})") + event("[DONE]"));
  CHECK(good.text() == "a\n");
  CHECK(good.finish_reason() == "length");
  CHECK(good.is_done());
  CHECK(good.error().empty());
  const ChatAnswer odd = answer_of(event(R"({"choices":[7,{"delta":5},{"delta":{"content":[]}},{"finish_reason":3}]})") + event(R"({"choices":{}})"));
  CHECK((odd.text().empty() && odd.error().empty() && odd.finish_reason().empty()));
  CHECK(answer_of(event("7")).error() == "an event of the stream is not JSON");
  CHECK(answer_of(event(R"({"error":"lost"})")).error() == "an error without a reason");
  const ChatAnswer failed = answer_of(event(R"({"error":{"message":"lost"}})") + event(R"({"choices":[{"delta":{"content":"late"}}]})"));
  CHECK(failed.error() == "lost");
  CHECK(failed.text().empty());
  CHECK(describe_refusal({500, R"({"error":{"message":[1]}})"}).find("without a reason") != std::string::npos);
}

TEST_CASE("wheel index: the file for any platform; members of other types are passed over") {
  const std::string good = R"({"packagetype":"bdist_wheel","filename":"a-1-py3-none-any.whl","url":"https://a/b","size":5,"digests":{"sha256":")" +
                           std::string(64, '0') + "\"}}";
  auto of = [](const std::string& files) { return parse_wheel_index("{\"urls\":[" + files + "]}", "a"); };
  CHECK(of(good)->bytes == 5);
  CHECK(of("7,{\"packagetype\":3}," + good)->url == "https://a/b");
  for (const auto& [from, to] : {std::pair("\"bdist_wheel\"", "3"), {"\"https://a/b\"", "[]"}, {":5,", ":-5,"}, {":5,", ":\"5\","}, {"-any", "-linux"}}) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string(from).size(), to);
    INFO(bad);
    CHECK(of(bad).status().code() == StatusCode::kNotFound);
  }
  for (const char* body : {"", "[]", "{}", R"({"urls":5})"}) CHECK(parse_wheel_index(body, "a").status().code() == StatusCode::kDataLoss);
}

TEST_CASE("rows: a count that is none stays 0") {
  const auto rows = rows_from_json(R"({"data":[{"prompt_tokens":1e300,"seed":18446744073709551615,"total_ms":1e300,"id":[]},7]})");
  REQUIRE(rows.ok());
  REQUIRE(rows->size() == 2);
  CHECK((*rows)[0].seed == 18446744073709551615ull);
  CHECK((*rows)[0].total_ms == 1e300);
  CHECK((*rows)[0].prompt_tokens == 0);
  CHECK((*rows)[0].id.empty());
}

}  // namespace tandem::ctl
