// Raw sockets against every hole of the HTTP library that the guards close (field cases C-43, C-45).
#include "api/json_writer.h"
#include "base/clock.h"
#include "server_fixture.h"

namespace tandem::api {
namespace {

std::string head(const std::string& lines) { return "GET /health HTTP/1.1\r\n" + lines + "\r\n"; }

void expect_error(int port, const std::string& request, int status, const std::string& code) {
  INFO(request.substr(0, 200));
  RawReply reply = fetch(port, request);
  CHECK(reply.status == status);
  CHECK(reply.headers.count("x-request-id") == 1);
  if (reply.status == status) CHECK(str(json(reply.body), "error", "code") == code);
}

}  // namespace

TEST_CASE("http guard: ambiguous and malformed heads are refused") {
  ServerFixture f;
  int port = f.start();
  const std::string host = "Host: localhost\r\n";
  for (const std::string& bad : {
           std::string("GARBAGE\r\n\r\n"),
           std::string("GET  HTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET /he\x01lth HTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET /h\xC3\xA9 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET /health XTTP/1.1\r\nHost: localhost\r\n\r\n"),
           std::string("GET /health HTTP/1.1\nHost: localhost\n\n"),  // bare line feeds
           std::string("GET /health HTTP/1.1\r\n\r\n"),               // no Host
           head(host + host),
           head(host + "No colon\r\n"),
           head(host + "Bad name: x\r\n"),
           head(host + "X-Blank : x\r\n"),
           head(host + ": x\r\n"),
           head(host + "X-Folded: a\r\n b\r\n"),
           head(host + std::string("X-Nul: a\0b\r\n", 12)),
           head(host + "X-Cr: a\rb\r\n"),
           head(host + "Content-Length: 0\r\nContent-Length: 0\r\n"),  // the same, but twice
           head(host + "Content-Length: 1\r\nContent-Length: 2\r\n"),
           head(host + "Content-Length: 3, 3\r\n"),
           head(host + "Content-Length: -1\r\n"),
           head(host + "Content-Length: +1\r\n"),
           head(host + "Content-Length: 0x1\r\n"),
           head(host + "Content-Length: \r\n"),
           head(host + "Content-Length: 99999999999999999999999\r\n"),
           head(host + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
           head(host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
           head(host + "Transfer-Encoding: gzip\r\n"),
           head(host + "Transfer-Encoding: chunked, identity\r\n"),
           head(host + "Content-Encoding: gzip\r\n"),
           head(host + "Expect: the-unexpected\r\n"),
           head(host + "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n"),
           std::string("GET /health HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
       })
    expect_error(port, bad, 400, "invalid_http");
  expect_error(port, "GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, "http_version_not_supported");
  expect_error(port, get("/" + std::string(5000, 'a')), 414, "uri_too_long");
  CHECK(fetch(port, get("/health")).status == 200);
}

TEST_CASE("http guard: header bytes and header count are bounded") {
  ServerFixture f;
  f.config.server_max_header_bytes = 4096;
  int port = f.start();
  expect_error(port, get("/health", "X-Long: " + std::string(5000, 'a') + "\r\n"), 431, "headers_too_large");
  RawClient endless(port);  // never ends its head
  endless.send("GET /health HTTP/1.1\r\nX-Long: ");
  endless.send(std::string(60000, 'a'));
  CHECK(endless.read_reply().status == 431);
  std::string many;
  for (int i = 0; i < 101; ++i) many += "A: b\r\n";
  expect_error(port, get("/health", many), 431, "headers_too_large");
  CHECK(fetch(port, get("/health", "X-Fine: " + std::string(3000, 'a') + "\r\n")).status == 200);
}

TEST_CASE("http guard: body size is bounded however it is framed") {
  ServerFixture f;
  f.config.server_max_body_bytes = 2000;
  int port = f.start();
  const std::string big(3000, 'x');
  expect_error(port, post("/v1/completions", big), 413, "body_too_large");
  // Only announced: refused without waiting for it.
  std::string announced = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ";
  expect_error(port, announced + "999999999999\r\n\r\n", 413, "body_too_large");
  std::string chunked = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string pieces;
  for (int i = 0; i < 30; ++i) pieces += "64\r\n" + std::string(100, 'x') + "\r\n";
  expect_error(port, chunked + pieces + "0\r\n\r\n", 413, "body_too_large");
  expect_error(port, chunked + "FFFFFFFF\r\n", 413, "body_too_large");
  // Each refused inference request has its row.
  auto rows = f.service.rejected();
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].endpoint == "completions");
  CHECK(rows[0].http_status == 413);
  CHECK(rows[0].status == "rejected");
  CHECK(f.service.n_submitted == 0);
}

TEST_CASE("http guard: chunked bodies are decoded strictly") {
  ServerFixture f;
  int port = f.start();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
  RawReply good = fetch(port, head + "5;ext=1\r\n{\"pro\r\nc\r\nmpt\":\"hello\"\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n");
  CHECK(good.status == 200);
  CHECK(f.service.last_prepare().text == "hello");
  for (const char* bad : {"zz\r\n", "\r\n", "-1\r\n", "123456789\r\n", "2\r\nabX\r\n", "2\r\nab\n", "5\n"})
    expect_error(port, head + bad + "0\r\n\r\n", 400, "invalid_http");
}

TEST_CASE("http guard: Expect 100-continue") {
  ServerFixture f;
  f.config.server_max_body_bytes = 2000;
  int port = f.start();
  RawClient client(port);
  std::string request = post("/v1/completions", R"({"prompt":"a"})", "Expect: 100-continue\r\n");
  size_t head_end = request.find("\r\n\r\n") + 4;
  client.send(request.substr(0, head_end));
  CHECK(client.read_reply().status == 100);
  client.send(request.substr(head_end));
  CHECK(client.read_reply().status == 200);
  RawClient large(port);  // the final answer instead of 100
  large.send(post("/v1/completions", "", "Expect: 100-continue\r\n").replace(0, 0, "").replace(
      post("/v1/completions", "", "Expect: 100-continue\r\n").find("Content-Length: 0"), 17, "Content-Length: 5000"));
  CHECK(large.read_reply().status == 413);
}

TEST_CASE("http guard: nothing of the request leaks into the reply head") {
  ServerFixture f;
  int port = f.start();
  // Unknown members are named in a header; their names cannot break it.
  RawReply reply = fetch(port, post("/v1/completions", R"({"prompt":"a","x\r\nSet-Cookie: a":1,"kn\u00e4ck":2,"plain_one":3})"));
  REQUIRE(reply.status == 200);
  CHECK(reply.headers["x-tandem-ignored"] == "?, ?, plain_one");
  CHECK(reply.headers.count("set-cookie") == 0);
  RawReply missing = fetch(port, get("/nothing%0d%0aX-Bad:%20yes?a=%0d%0aX-Bad:yes"));
  CHECK(missing.status == 404);
  CHECK(missing.headers.count("x-bad") == 0);
}

TEST_CASE("http guard: an exception in a handler is a 500 without its text") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest&) -> ApiResult<Script> { throw std::runtime_error("secret text"); };
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/completions", R"({"prompt":"a"})"));
  CHECK(reply.status == 500);
  CHECK(str(json(reply.body), "error", "code") == "internal_error");
  for (const auto& [name, value] : reply.headers) CHECK(value.find("secret") == std::string::npos);
  CHECK(reply.body.find("secret") == std::string::npos);
  CHECK(fetch(port, get("/health")).status == 200);
}

TEST_CASE("http guard: client headers cannot shadow the peer's address") {
  ServerFixture f;
  int port = f.start();
  // /status.json without keys is for loopback peers: judged by the socket, whatever headers say.
  CHECK(fetch(port, get("/status.json", "REMOTE_ADDR: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.1\r\n")).status == 200);
}

TEST_CASE("http guard: methods and unknown paths") {
  ServerFixture f;
  int port = f.start();
  expect_error(port, get("/nothing"), 404, "unknown_url");
  expect_error(port, get("/v1/modelsX"), 404, "unknown_url");
  expect_error(port, get("/../etc/passwd"), 404, "unknown_url");
  expect_error(port, "BREW /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "unknown_url");
  expect_error(port, "BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed");
  expect_error(port, "PUT /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", 405, "method_not_allowed");
  expect_error(port, "CONNECT /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed");
  RawReply wrong = fetch(port, get("/v1/chat/completions"));
  CHECK(wrong.status == 405);
  CHECK(wrong.headers["allow"] == "POST, OPTIONS");
  RawReply del = fetch(port, "DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(del.status == 405);
  CHECK(del.headers["allow"] == "GET, HEAD, OPTIONS");
  RawReply head = fetch(port, "HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(head.status == 200);
  CHECK(std::stoi(head.headers["content-length"]) > 0);
  RawReply options = fetch(port, "OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  CHECK(options.status == 200);
  CHECK(options.headers["allow"] == "GET, HEAD, OPTIONS");
  CHECK(options.headers.count("access-control-allow-origin") == 0);
  CHECK(fetch(port, "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200);
}

TEST_CASE("http guard: HTTP/1.0, pipelining, Connection: close") {
  ServerFixture f;
  int port = f.start();
  RawClient old(port);
  old.send("GET /health HTTP/1.0\r\n\r\n");
  CHECK(old.read_reply().status == 200);
  CHECK(old.is_closed(5000));
  RawClient old_stream(port);  // no chunks for HTTP/1.0
  std::string request = post("/v1/chat/completions", kChatStream);
  old_stream.send(request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0"));
  RawReply streamed = old_stream.read_reply();
  CHECK(streamed.status == 200);
  CHECK(streamed.headers.count("transfer-encoding") == 0);
  CHECK(sse_events(streamed.body).back() == "[DONE]");
  RawClient pipelined(port);
  pipelined.send(get("/health") + post("/v1/completions", R"({"prompt":"a"})") + "\r\n" + get("/v1/models", "Connection: close\r\n"));
  CHECK(pipelined.read_reply().status == 200);
  CHECK(pipelined.read_reply().status == 200);
  RawReply last = pipelined.read_reply();
  CHECK(last.status == 200);
  CHECK(last.headers["connection"] == "close");
  CHECK(pipelined.is_closed(5000));
}

TEST_CASE("http guard: hostile bodies get 400 and the process goes on (C-43, C-45)") {
  ServerFixture f;
  int port = f.start();
  auto nested = [](int depth) {
    return R"({"messages":)" + std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']') + "}";
  };
  int64_t begin = monotonic_us();
  expect_error(port, post("/v1/chat/completions", nested(100000)), 400, "invalid_json");
  CHECK(monotonic_us() - begin < 1'000'000);  // 100 ms on an idle machine; this one may be busy
  for (const std::string& body : {
           std::string(""), std::string("{"), std::string("{:"), std::string("\xFF"), std::string("null"), std::string("[]"),
           std::string("7"), std::string("\xEF\xBB\xBF{\"prompt\":\"a\"}"), std::string("{\"prompt\":\"\\ud800\"}"),
           std::string("{\"prompt\":\"\\ud800\\u0041\"}"), std::string("{\"prompt\":\"\\udc00\"}"),
           std::string("{\"prompt\":\"\xC4\xE3\xBA\xC3\"}"),  // GBK
           std::string("{\"prompt\":\"a\\u0000b\"}"), std::string("{\"prompt\":\"a\0b\"}", 16), std::string("{\"prompt\":\"a\"}\0", 15),
           std::string("{\"prompt\":1e999}"), std::string("{\"prompt\":\"a\",\"prompt\":\"b\"}"), std::string("{\"prompt\":\"a\"} x"),
           std::string("{\"prompt\":\"\xED\xA0\x80\"}"), std::string("{\"prompt\":\"\xC0\xAF\"}"), std::string("{\"prompt\":NaN}"),
           std::string("{'prompt':'a'}"), std::string("{\"prompt\":\"a\",}"), std::string("// c\n{}"),
       }) {
    INFO(body);
    RawReply reply = fetch(port, post("/v1/completions", body));
    CHECK(reply.status == 400);
    CHECK(str(json(reply.body), "error", "code") == "invalid_json");  // json() also checks UTF-8
    CHECK(reply.body.find("\xFF") == std::string::npos);
  }
  RawReply wrong_type = fetch(port, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
  CHECK(wrong_type.status == 400);
  CHECK(str(json(wrong_type.body), "error", "param") == "Content-Type");
  for (const auto& row : f.service.rejected()) {
    CHECK(valid_utf8(row.error) == row.error);
    CHECK(row.status == "rejected");
  }
  CHECK(fetch(port, post("/v1/completions", R"({"prompt":"a"})")).status == 200);
}

}  // namespace tandem::api
