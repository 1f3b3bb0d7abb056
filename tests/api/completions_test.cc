// /v1/completions: prompts, choices, echo, log-probabilities in both shapes (field cases C-08, C-10, C-11).
#include <limits>

#include "api/reply_shapes.h"
#include "server_fixture.h"

namespace tandem::api {
namespace {

// Two tokens with log-probabilities, the second half a character each.
Script logprob_script(const GenerateRequest& r) {
  Script script;
  if (r.prompt_logprobs) {
    StreamEvent e;
    e.kind = StreamEvent::Kind::kPromptLogprobs;
    e.logprobs = {logprob_entry("\xC3\xA4", 0)};
    script.push_back({e, 0});
    e.logprobs = {logprob_entry("b", -0.25f, {{"b", -0.25f}, {"c", -2}})};
    script.push_back({e, 0});
  }
  for (uint32_t c = 0; c < static_cast<uint32_t>(r.n_choices); ++c) {
    script.push_back({text_event(c, "Hi", {logprob_entry("Hi", -0.5f, {{"Hi", -0.5f}, {"Ho", -1.5f}})}), 0});
    script.push_back({text_event(c, "\xE2\x82\xAC",
                                 {logprob_entry("\xE2\x82", -1, {{"x", -0.125f}}), logprob_entry("\xAC", -std::numeric_limits<float>::infinity())}), 0});
    script.push_back({choice_end(c, ipc::FinishReason::kLength), 0});
  }
  script.push_back({end_event(2, 3 * r.n_choices), 0});
  return script;
}

std::vector<std::string> strings(const JsonValue& list) {
  std::vector<std::string> out;
  for (const JsonValue& v : *list.as_array()) out.push_back(*v.as_string());
  return out;
}

}  // namespace

TEST_CASE("completions: plain shape, one choice a prompt and n") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> {
    return words_script(r, {"<" + std::to_string(r.prompt.size()) + ">"});
  };
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/completions", R"({"prompt":["a","bbb"],"n":2})"));
  REQUIRE(reply.status == 200);
  JsonValue v = json(reply.body);
  CHECK(str(v, "object") == "text_completion");
  CHECK(str(v, "id").substr(0, 5) == "cmpl-");
  REQUIRE(at(v, "choices").as_array()->size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(num(v, "choices", i, "index") == i);
    CHECK(str(v, "choices", i, "text") == (i < 2 ? "<1>" : "<3>"));
    CHECK(str(v, "choices", i, "finish_reason") == "stop");
  }
  CHECK(num(v, "usage", "prompt_tokens") == 4);
  CHECK(num(v, "usage", "completion_tokens") == 4);
  CHECK(f.service.n_submitted == 2);
  // The same, streamed: the same texts, one finish a choice, one [DONE].
  RawReply streamed = fetch(port, post("/v1/completions", R"({"prompt":["a","bbb"],"n":2,"stream":true,"stream_options":{"include_usage":true}})"));
  auto events = sse_events(streamed.body);
  REQUIRE(events.back() == "[DONE]");
  std::string text[4];
  int finishes = 0;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    JsonValue chunk = json(events[i]);
    text[num(chunk, "choices", 0, "index")] += str(chunk, "choices", 0, "text");
    finishes += !at(chunk, "choices", 0, "finish_reason").is_null();
  }
  CHECK(finishes == 4);
  CHECK(text[0] == "<1>");
  CHECK(text[3] == "<3>");
  CHECK(num(json(events[events.size() - 2]), "usage", "completion_tokens") == 4);
}

TEST_CASE("completions: token ids as prompt") {
  ServerFixture f;
  int port = f.start();
  CHECK(fetch(port, post("/v1/completions", R"({"prompt":[5,6,7]})")).status == 200);
  CHECK(f.service.last_prepare().kind == ipc::Prepare::Kind::kIds);
  CHECK(f.service.last_request().prompt == std::vector<int32_t>{5, 6, 7});
  RawReply empty = fetch(port, post("/v1/completions", R"({"prompt":""})"));
  CHECK(empty.status == 400);
  CHECK(str(json(empty.body), "error", "code") == "invalid_prompt");
}

TEST_CASE("completions: legacy log-probabilities") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> { return logprob_script(r); };
  int port = f.start();
  JsonValue v = json(fetch(port, post("/v1/completions", "{\"prompt\":\"\xC3\xA4" "b\",\"logprobs\":2,\"n\":2}")).body);
  for (int c = 0; c < 2; ++c) {
    const JsonValue& lp = at(v, "choices", c, "logprobs");
    CHECK(strings(at(lp, "tokens")) == std::vector<std::string>{"Hi", "bytes:\\xe2\\x82", "bytes:\\xac"});
    CHECK(*at(lp, "token_logprobs", 0).as_double() == -0.5);
    CHECK(*at(lp, "token_logprobs", 2).as_integer() == -9999);  // finite, whatever the model says
    CHECK(*at(lp, "top_logprobs", 0, "Ho").as_double() == -1.5);
    CHECK(at(lp, "top_logprobs", 1).as_object()->size() == 2);  // the chosen one is always in it
    CHECK(num(lp, "text_offset", 0) == 0);
    CHECK(num(lp, "text_offset", 1) == 2);
    CHECK(num(lp, "text_offset", 2) == 3);
  }
  CHECK(f.service.last_request().sampling.n_top_logprobs == 2);
  CHECK(at(json(fetch(port, post("/v1/completions", R"({"prompt":"a"})")).body), "choices", 0, "logprobs").is_null());
}

TEST_CASE("completions: echo with log-probabilities, plain and streamed") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> { return logprob_script(r); };
  int port = f.start();
  const std::string members = "\"prompt\":\"\xC3\xA4" "b\",\"logprobs\":2,\"echo\":true";
  JsonValue v = json(fetch(port, post("/v1/completions", "{" + members + "}")).body);
  CHECK(str(v, "choices", 0, "text") == "\xC3\xA4" "bHi\xE2\x82\xAC");
  const JsonValue& lp = at(v, "choices", 0, "logprobs");
  CHECK(strings(at(lp, "tokens")).size() == 5);
  CHECK(at(lp, "token_logprobs", 0).is_null());
  CHECK(at(lp, "top_logprobs", 0).is_null());
  CHECK(*at(lp, "token_logprobs", 1).as_double() == -0.25);
  CHECK(num(lp, "text_offset", 2) == 2);  // characters, not bytes
  CHECK(f.service.last_request().prompt_logprobs);
  auto events = sse_events(fetch(port, post("/v1/completions", "{" + members + ",\"stream\":true}")).body);
  std::string text;
  std::vector<int64_t> offsets;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    JsonValue chunk = json(event);
    text += str(chunk, "choices", 0, "text");
    if (const JsonValue* list = at(chunk, "choices", 0, "logprobs").find("text_offset"))
      for (const JsonValue& o : *list->as_array()) offsets.push_back(*o.as_integer());
  }
  CHECK(text == "\xC3\xA4" "bHi\xE2\x82\xAC");
  CHECK(offsets == std::vector<int64_t>{0, 1, 2, 4, 5});
}

TEST_CASE("completions: echo without anything generated") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> {
    return Script{{choice_end(0, ipc::FinishReason::kLength), 0}, {end_event(static_cast<int64_t>(r.prompt.size()), 0), 0}};
  };
  int port = f.start();
  JsonValue v = json(fetch(port, post("/v1/completions", R"({"prompt":"abc","echo":true,"max_tokens":0})")).body);
  CHECK(str(v, "choices", 0, "text") == "abc");
  CHECK(str(v, "choices", 0, "finish_reason") == "length");
  CHECK(f.service.last_request().max_tokens == 0u);
  auto events = sse_events(fetch(port, post("/v1/completions", R"({"prompt":"abc","echo":true,"max_tokens":0,"stream":true})")).body);
  REQUIRE(events.size() == 3);
  CHECK(str(json(events[0]), "choices", 0, "text") == "abc");
}

TEST_CASE("chat: log-probabilities have the chat shape, plain and streamed") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> { return logprob_script(r); };
  int port = f.start();
  const std::string members = R"("messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":2)";
  JsonValue v = json(fetch(port, post("/v1/chat/completions", "{" + members + "}")).body);
  const JsonValue& content = at(v, "choices", 0, "logprobs", "content");
  REQUIRE(content.as_array()->size() == 3);
  CHECK(str(content, 0, "token") == "Hi");
  CHECK(*at(content, 0, "logprob").as_double() == -0.5);
  CHECK(num(content, 1, "bytes", 0) == 0xE2);
  CHECK(str(content, 0, "top_logprobs", 1, "token") == "Ho");
  auto events = sse_events(fetch(port, post("/v1/chat/completions", "{" + members + ",\"stream\":true}")).body);
  size_t n = 0;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    JsonValue chunk = json(event);
    if (const JsonValue* list = at(chunk, "choices", 0, "logprobs").find("content")) n += list->as_array()->size();
  }
  CHECK(n == 3);
}

TEST_CASE("degradation is visible: header, tandem object, null log-probabilities") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest&) -> ApiResult<Script> {
    std::vector<std::string> rungs = {"logprobs", "weights-4bit"};
    return Script{{text_event(0, "a"), 0}, {choice_end(0, ipc::FinishReason::kDeadline, "", rungs), 0}, {end_event(1, 1, 0, rungs), 0}};
  };
  int port = f.start();
  RawReply plain = fetch(port, post("/v1/completions", R"({"prompt":"a","logprobs":1})"));
  CHECK(plain.headers["x-tandem-degraded"] == "logprobs,weights-4bit");
  JsonValue v = json(plain.body);
  CHECK(at(v, "choices", 0, "logprobs").is_null());
  CHECK(str(v, "choices", 0, "finish_reason") == "length");
  CHECK(str(v, "tandem", "degraded", 1) == "weights-4bit");
  CHECK(str(v, "tandem", "reason") == "deadline");
  auto events = sse_events(fetch(port, post("/v1/completions", R"({"prompt":"a","logprobs":1,"stream":true})")).body);
  JsonValue finish = json(events[events.size() - 2]);
  CHECK(str(finish, "choices", 0, "finish_reason") == "length");
  CHECK(str(finish, "tandem", "degraded", 0) == "logprobs");
  CHECK(str(finish, "tandem", "reason") == "deadline");
}

TEST_CASE("completions: one refused prompt refuses all and cancels the others") {
  ServerFixture f;
  f.service.script = [](const GenerateRequest& r) -> ApiResult<Script> {
    if (r.prompt.size() == 3) return api_error("queue_full", "the queue is full", "", 7);
    return Script{};
  };
  int port = f.start();
  RawReply reply = fetch(port, post("/v1/completions", R"({"prompt":["a","b","ccc"]})"));
  CHECK(reply.status == 429);
  CHECK(reply.headers["retry-after"] == "7");
  CHECK(f.service.wait_cancelled(2, 5000) == 2);
  CHECK(f.service.rejected().size() == 1);
}

}  // namespace tandem::api
