// The pure parsers: JSON guard, HTTP head, JSON writer.
#include <catch2/catch.hpp>

#include <limits>
#include <random>

#include "api/http_head.h"
#include "api/json_value.h"
#include "api/json_writer.h"
#include "api/validation.h"

namespace tandem::api {

TEST_CASE("json guard: depth and kinds") {
  auto nested = [](int depth) { return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']'); };
  CHECK(parse_json(nested(kMaxJsonDepth)).ok());
  CHECK(!parse_json(nested(kMaxJsonDepth + 1)).ok());
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  CHECK(!parse_json(objects).ok());
  auto parsed = parse_json(R"({"a":[1,-2,2.5,1e3,true,false,null,"x\u00e4\ud83d\ude00"],"b":{"c":18446744073709551615}})");
  REQUIRE(parsed.ok());
  const JsonArray& a = *parsed.value().find("a")->as_array();
  CHECK(*a[0].as_integer() == 1);
  CHECK(*a[1].as_integer() == -2);
  CHECK(*a[2].as_double() == 2.5);
  CHECK(*a[3].as_double() == 1000);
  CHECK(*a[4].as_bool());
  CHECK(a[6].is_null());
  CHECK(*a[7].as_string() == "x\xC3\xA4\xF0\x9F\x98\x80");
  CHECK(*parsed.value().find("b")->find("c")->as_double() == 18446744073709551615.0);
}

TEST_CASE("json guard: the number of values is bounded") {
  std::string list = "[0";
  for (size_t i = 0; i < kMaxJsonValues; ++i) list += ",0";
  CHECK(!parse_json(list + "]").ok());
}

TEST_CASE("json writer: what it writes reads back") {
  JsonWriter out;
  std::string odd = "quote\" back\\ tab\t nul" + std::string(1, '\0') + " bad\xFF\xC3 euro\xE2\x82\xAC";
  out.begin_object().key("a\"b").string(odd.substr(0, 16)).key("n").begin_array().number(0.1).number(0.1f).number(-0.0).integer(-5);
  out.number(std::numeric_limits<double>::quiet_NaN()).boolean(true).null().end_array().key("o").begin_object().end_object().end_object();
  std::string text = out.take();
  CHECK(text == "{\"a\\\"b\":\"quote\\\" back\\\\ tab\",\"n\":[0.1,0.1,-0,-5,null,true,null],\"o\":{}}");
  CHECK(parse_json(text).ok());
  JsonWriter bad;
  bad.string("a\xFF\xE2\x82z");
  CHECK(bad.take() == "\"a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBDz\"");
  CHECK(valid_utf8("a\xFF\xE2\x82z") == "a\xEF\xBF\xBDz");
}

TEST_CASE("http head: fields") {
  auto parsed = parse_http_head("POST /a/b?c=d HTTP/1.1\r\nHOST: x\r\nX-Two:  spaced \t\r\nConnection: Keep-Alive, close\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n");
  REQUIRE(parsed.ok());
  HttpHead& h = parsed.value();
  CHECK(h.method == "POST");
  CHECK(h.path == "/a/b");
  CHECK(h.target == "/a/b?c=d");
  CHECK(*h.find("x-two") == "spaced");
  CHECK(!h.keeps_alive);
  CHECK(h.content_length == 5u);
  CHECK(h.expects_continue);
  CHECK(find_head_end("GET / HTTP/1.1\r\n\r\nrest") == 18);
  CHECK(find_head_end("GET / HTTP/1.1\r\n\r") == std::string_view::npos);
  CHECK(find_head_end("a\n\nb") == 3);
}

TEST_CASE("parsers survive random and damaged input") {
  std::mt19937 random(7);
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string body = R"({"messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00"}]}],"prompt":["a",[1]],"logit_bias":{"1":2.5},"stop":["x"],"n":2})";
  int n_ok = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string h = head, b = body;
    for (unsigned k = 0; k <= random() % 4; ++k) {
      h[random() % h.size()] = static_cast<char>(random());
      b[random() % b.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) h.resize(random() % h.size()), b.resize(random() % b.size());
    n_ok += parse_http_head(h).ok();
    auto chat = parse_chat_request(b, {});
    auto completion = parse_completion_request(b, {});
    n_ok += chat.ok() + completion.ok();
    if (!chat.ok()) CHECK(valid_utf8(chat.error().message) == chat.error().message);
  }
  INFO(n_ok << " of 60000 accepted");
  CHECK(n_ok < 60000);
}

}  // namespace tandem::api
