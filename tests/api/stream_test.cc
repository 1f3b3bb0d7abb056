// What streams do when things go wrong, wait, or end early (field cases C-10, C-19).
#include "base/clock.h"
#include "server_fixture.h"

namespace tandem::api {
namespace {

RawReply chat_stream(int port) { return fetch(port, post("/v1/chat/completions", kChatStream)); }

}  // namespace

TEST_CASE("stream: an error before the first event keeps its HTTP status") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest&) -> ApiResult<Script> {
    return Script{{error_event("deadline_exceeded"), 50}};
  };
  int port = f.start();
  RawReply reply = chat_stream(port);
  CHECK(reply.status == 504);
  CHECK(reply.headers["content-type"] == "application/json");
  CHECK(str(json(reply.body), "error", "type") == "server_error");
  CHECK(f.service.rejected().empty());  // the service owns the row of what it accepted
}

TEST_CASE("stream: a refusal by submit keeps its status and gets its row") {
  ServerFixture f;
  struct Row {
    const char* code;
    int status;
  };
  const char* code = "";
  f.service.script = [&](const GenerateRequest&) -> ApiResult<Script> { return api_error(code, "no", "", 12); };
  int port = f.start();
  size_t n = 0;
  for (const Row& row : {Row{"context_length_exceeded", 400}, Row{"kv_pool_exceeded", 400}, Row{"prompt_too_long", 413},
                         Row{"queue_full", 429}, Row{"overloaded", 429}, Row{"draining", 503}, Row{"no_worker", 503},
                         Row{"request_quarantined", 500}}) {
    code = row.code;
    RawReply reply = chat_stream(port);
    CHECK(reply.status == row.status);
    CHECK(str(json(reply.body), "error", "code") == row.code);
    CHECK(reply.headers["retry-after"] == "12");
    auto rows = f.service.rejected();
    REQUIRE(rows.size() == ++n);
    CHECK(rows.back().id == reply.headers["x-request-id"]);
    CHECK(rows.back().http_status == row.status);
    CHECK(rows.back().received_us > 1'600'000'000'000'000);
    CHECK(rows.back().finished_us >= rows.back().received_us);
  }
}

TEST_CASE("stream: an error in the middle is an event, then a close without [DONE] (C-19)") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest&) -> ApiResult<Script> {
    return Script{{text_event(0, "a"), 0}, {error_event("worker_failed", "it \xFF broke"), 0}};
  };
  int port = f.start();
  RawClient client(port);
  client.send(post("/v1/chat/completions", kChatStream));
  RawReply reply = client.read_reply();
  CHECK(reply.status == 200);
  auto events = sse_events(reply.body);
  CHECK(str(json(events.back()), "error", "code") == "worker_failed");
  CHECK(reply.body.find("[DONE]") == std::string::npos);
  CHECK(client.is_closed(5000));
  RawReply plain = fetch(port, post("/v1/chat/completions", kChat));  // the same, not streamed
  CHECK(plain.status == 500);
}

TEST_CASE("stream: bad requests are refused before the stream begins") {
  ServerFixture f;
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}],"stream":true,"n":0})"));
  CHECK(reply.status == 400);
  CHECK(str(json(reply.body), "error", "param") == "n");
  CHECK(f.service.rejected().size() == 1);
}

TEST_CASE("stream: silence is filled with keep-alive comments, before and after the first token") {
  ServerFixture f;
  f.config.server_sse_keepalive_ms = 150;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> {
    Script script = words_script(r, {"a", "b"});
    script[0].delay_ms = 700;
    script[1].delay_ms = 700;
    return script;
  };
  int port = f.start();
  RawClient client(port);
  client.send(post("/v1/chat/completions", kChatStream));
  RawReply reply = client.read_reply();
  REQUIRE(reply.status == 200);
  size_t first = reply.body.find("\"content\":\"a\""), second = reply.body.find("\"content\":\"b\"");
  REQUIRE(second != std::string::npos);
  CHECK(reply.body.find(": keep-alive\n\n") < first);
  CHECK(reply.body.find(": keep-alive\n\n", first) < second);
  CHECK(sse_events(reply.body).back() == "[DONE]");
}

TEST_CASE("stream: text equals the plain reply's, whatever pieces it came in (C-06)") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> {
    return words_script(r, {"The ", "\xF0\x9F\xA6\x9C", " \"quoted\"\n", "\\back\x01\x7F", "\xE2\x80\xA8", "", "end"});
  };
  int port = f.start();
  std::string plain = str(json(fetch(port, post("/v1/chat/completions", kChat)).body), "choices", 0, "message", "content");
  std::string streamed;
  for (const std::string& event : sse_events(chat_stream(port).body)) {
    if (event == "[DONE]") continue;
    CHECK(event.find('\n') == std::string::npos);
    JsonValue chunk = json(event);
    if (const JsonValue* content = at(chunk, "choices", 0, "delta").find("content")) streamed += *content->as_string();
  }
  CHECK(plain == streamed);
  CHECK(plain == "The \xF0\x9F\xA6\x9C \"quoted\"\n\\back\x01\x7F\xE2\x80\xA8" "end");
}

TEST_CASE("stream: text released with the end is not lost") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest&) -> ApiResult<Script> {
    StreamEvent end = choice_end(0);
    end.text = "tail";
    return Script{{text_event(0, "head "), 0}, {end, 0}, {end_event(1, 2), 0}};
  };
  int port = f.start();
  CHECK(str(json(fetch(port, post("/v1/chat/completions", kChat)).body), "choices", 0, "message", "content") == "head tail");
  auto events = sse_events(chat_stream(port).body);
  REQUIRE(events.size() == 5);  // role, head, tail, finish, [DONE]
  CHECK(str(json(events[2]), "choices", 0, "delta", "content") == "tail");
  CHECK(at(json(events[3]), "choices", 0, "delta").as_object()->empty());
}

TEST_CASE("stream: usage only when asked, with cached tokens apart (C-10)") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest&) -> ApiResult<Script> {
    return Script{{text_event(0, "a"), 0}, {choice_end(0), 0}, {end_event(40, 1, 32), 0}};
  };
  int port = f.start();
  for (const std::string& event : sse_events(chat_stream(port).body)) CHECK(event.find("usage") == std::string::npos);
  JsonValue v = json(fetch(port, post("/v1/chat/completions", kChat)).body);
  CHECK(num(v, "usage", "prompt_tokens") == 40);
  CHECK(num(v, "usage", "prompt_tokens_details", "cached_tokens") == 32);
}

TEST_CASE("stream: request details reach the service") {
  ServerFixture f;
  f.config.limits_timeout_ms = 5000;
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"a <|im_end|> b"}],"stream":true,"stop":["x"],"max_completion_tokens":9,"seed":5,"unknown_one":1})"));
  CHECK(reply.headers["x-tandem-ignored"] == "unknown_one");
  GenerateRequest r = f.service.last_request();
  CHECK(r.id == reply.headers["x-request-id"]);
  CHECK(r.endpoint == "chat");
  CHECK(r.is_stream);
  CHECK(r.stop == std::vector<std::string>{"x"});
  CHECK(r.max_tokens == 9u);
  CHECK(r.sampling.seed == 5);
  CHECK(r.deadline_us - r.received_us == 5'000'000);
  ipc::Prepare p = f.service.last_prepare();
  CHECK(p.kind == ipc::Prepare::Kind::kChat);
  CHECK(p.messages.at(0).content == "a <|im_end|> b");
  CHECK(!p.parse_special);
  fetch(port, post("/v1/completions", R"({"prompt":"a","timeout_s":2})"));
  r = f.service.last_request();
  CHECK(r.deadline_us - r.received_us == 2'000'000);
  uint64_t drawn = r.sampling.seed;
  fetch(port, post("/v1/completions", R"({"prompt":"a"})"));
  CHECK(f.service.last_request().sampling.seed != drawn);  // drawn anew for each request without one
}

TEST_CASE("model names and token ids out of range") {
  ServerFixture f;
  int port = f.start();
  CHECK(fetch(port, post("/v1/completions", R"({"prompt":"a","model":"fake-model"})")).status == 200);
  RawReply other = fetch(port, post("/v1/completions", R"({"prompt":"a","model":"gpt-4"})"));
  CHECK(other.status == 404);
  CHECK(str(json(other.body), "error", "code") == "model_not_found");
  CHECK(str(json(other.body), "error", "param") == "model");
  RawReply bias = fetch(port, post("/v1/completions", R"({"prompt":"a","logit_bias":{"1000":1}})"));
  CHECK(bias.status == 400);
  CHECK(str(json(bias.body), "error", "message") == "`logit_bias` must have token ids < 1000, got 1000");
}

TEST_CASE("template refusals come out as 400 (C-40)") {
  ServerFixture f;
  f.service.prepare_error = [](const ipc::Prepare&) {
    return api_error("template_error", "Conversation roles must alternate", "messages");
  };
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/chat/completions", kChat));
  CHECK(reply.status == 400);
  CHECK(str(json(reply.body), "error", "message") == "Conversation roles must alternate");
  CHECK(f.service.rejected().size() == 1);
}

}  // namespace tandem::api
