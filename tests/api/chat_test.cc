#include "server_fixture.h"

namespace tandem::api {

TEST_CASE("chat: plain reply has OpenAI's shape") {
  ServerFixture f;
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/chat/completions", kChat));
  REQUIRE(reply.status == 200);
  CHECK(reply.headers["content-type"] == "application/json");
  JsonValue v = json(reply.body);
  std::string id = reply.headers["x-request-id"];
  REQUIRE(id.substr(0, 4) == "req_");
  CHECK(str(v, "id") == "chatcmpl-" + id.substr(4));
  CHECK(str(v, "object") == "chat.completion");
  CHECK(str(v, "model") == "fake-model");
  CHECK(num(v, "created") > 1700000000);
  CHECK(str(v, "choices", 0, "message", "role") == "assistant");
  CHECK(str(v, "choices", 0, "message", "content") == "Hello, world");
  CHECK(str(v, "choices", 0, "finish_reason") == "stop");
  CHECK(at(v, "choices", 0, "logprobs").is_null());
  CHECK(num(v, "usage", "prompt_tokens") == 8);  // "<user>hi"
  CHECK(num(v, "usage", "completion_tokens") == 3);
  CHECK(num(v, "usage", "total_tokens") == 11);
  CHECK(num(v, "usage", "prompt_tokens_details", "cached_tokens") == 0);
  CHECK(at(v, "tandem", "queue_ms").as_double() != nullptr);
  CHECK(reply.headers.count("x-tandem-degraded") == 0);
}

TEST_CASE("chat: stream has role, text, finish, usage chunks and [DONE]") {
  ServerFixture f;
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"n":2,"stream_options":{"include_usage":true}})"));
  REQUIRE(reply.status == 200);
  REQUIRE(reply.is_complete);
  CHECK(reply.headers["content-type"] == "text/event-stream");
  auto events = sse_events(reply.body);
  REQUIRE(events.back() == "[DONE]");
  events.pop_back();
  std::string text[2];
  int n_roles = 0, n_finishes = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    JsonValue v = json(events[i]);
    CHECK(str(v, "object") == "chat.completion.chunk");
    CHECK(at(v, "usage").is_null());
    const JsonValue& choice = at(v, "choices", 0);
    auto index = static_cast<size_t>(num(choice, "index"));
    REQUIRE(index < 2);
    const JsonValue* role = at(choice, "delta").find("role");
    if (role != nullptr) {
      CHECK(i < 2);  // before any text
      ++n_roles;
    }
    if (const JsonValue* content = at(choice, "delta").find("content")) text[index] += *content->as_string();
    bool is_finish = !at(choice, "finish_reason").is_null();
    n_finishes += is_finish;
    CHECK((v.find("tandem") != nullptr) == is_finish);
  }
  CHECK(n_roles == 2);
  CHECK(n_finishes == 2);
  CHECK(text[0] == "Hello, world");
  CHECK(text[1] == text[0]);
  JsonValue usage = json(events.back());
  CHECK(at(usage, "choices").as_array()->empty());
  CHECK(num(usage, "usage", "completion_tokens") == 6);
  CHECK(num(usage, "usage", "prompt_tokens") == 8);  // once, however many choices
  CHECK(usage.find("tandem") == nullptr);
}

}  // namespace tandem::api
