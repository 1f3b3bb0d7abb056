// Bodies to structs: every bound, every refusal by name.
#include <catch2/catch.hpp>

#include "api/validation.h"

namespace tandem::api {
namespace {

const RequestBounds kBounds{16, 4, 8};

ApiResult<InferenceRequest> chat(const std::string& members) {
  return parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}])" + (members.empty() ? "" : "," + members) + "}", kBounds);
}
ApiResult<InferenceRequest> completion(const std::string& members) {
  return parse_completion_request(R"({"prompt":"hi")" + (members.empty() ? "" : "," + members) + "}", kBounds);
}
std::string chat_error(const std::string& members) {
  auto r = chat(members);
  return r.ok() ? "" : r.error().message;
}
std::string param_of(const ApiResult<InferenceRequest>& r) { return r.ok() ? "" : r.error().param; }
std::string messages_error(const std::string& messages, std::string* param = nullptr) {
  auto r = parse_chat_request("{\"messages\":" + messages + "}", kBounds);
  if (r.ok()) return "";
  if (param != nullptr) *param = r.error().param;
  return r.error().message;
}

}  // namespace

TEST_CASE("validation: defaults") {
  auto parsed = chat("");
  REQUIRE(parsed.ok());
  const InferenceRequest& r = parsed.value();
  CHECK(r.sampling.temperature == 1);
  CHECK(r.sampling.top_p == 1);
  CHECK(r.sampling.n_top_logprobs == -1);
  CHECK(r.n_choices == 1);
  CHECK(!r.max_tokens);
  CHECK(!r.has_seed);
  CHECK(!r.is_stream);
  CHECK(!r.priority);
  CHECK(r.ignored.empty());
}

TEST_CASE("validation: every parameter arrives") {
  auto parsed = completion(R"("model":"m","max_tokens":7,"temperature":0,"top_p":0.5,"top_k":40,"min_p":0.1,"repetition_penalty":1.5,
    "presence_penalty":-2,"frequency_penalty":2,"seed":-9223372036854775808,"stop":["a","bc"],"n":16,"logprobs":20,
    "logit_bias":{"5":-100,"0":100},"stream":true,"stream_options":{"include_usage":true},"echo":true,"ignore_eos":true,
    "priority":"low","user":"u","timeout_s":1.5)");
  if (!parsed.ok()) FAIL(parsed.error().message);
  const InferenceRequest& r = parsed.value();
  CHECK(r.model == "m");
  CHECK(r.max_tokens == 7u);
  CHECK(r.sampling.temperature == 0);
  CHECK(r.sampling.top_p == 0.5f);
  CHECK(r.sampling.top_k == 40);
  CHECK(r.sampling.min_p == 0.1f);
  CHECK(r.sampling.repetition_penalty == 1.5f);
  CHECK(r.sampling.presence_penalty == -2);
  CHECK(r.sampling.frequency_penalty == 2);
  CHECK(r.has_seed);
  CHECK(r.sampling.seed == 1ull << 63);
  CHECK(r.stop == std::vector<std::string>{"a", "bc"});
  CHECK(r.n_choices == 16);
  CHECK(r.sampling.n_top_logprobs == 20);
  CHECK(r.sampling.logit_bias == std::vector<std::pair<int32_t, float>>{{5, -100.f}, {0, 100.f}});
  CHECK(r.is_stream);
  CHECK(r.include_usage);
  CHECK(r.echo);
  CHECK(r.sampling.ignore_eos);
  CHECK(r.priority == ipc::Priority::kLow);
  CHECK(r.timeout_ms == 1500);
  CHECK(r.ignored.empty());
}

TEST_CASE("validation: bounds are stated") {
  CHECK(chat_error(R"("top_p":1.7)") == "`top_p` must be > 0 and <= 1, got 1.7");
  CHECK(chat_error(R"("top_p":0)") == "`top_p` must be > 0 and <= 1, got 0");
  CHECK(chat_error(R"("temperature":2.5)") == "`temperature` must be >= 0 and <= 2, got 2.5");
  CHECK(chat_error(R"("temperature":"hot")") == "`temperature` must be a number >= 0 and <= 2, got a string");
  CHECK(chat_error(R"("n":0)") == "`n` must be an integer >= 1 and <= 16, got 0");
  CHECK(chat_error(R"("stream":1)") == "`stream` must be true or false, got an integer");
}

TEST_CASE("validation: bad values are refused, naming the field") {
  struct Row {
    const char* members;
    const char* param;
  };
  for (const Row& row : {
           Row{R"("temperature":-0.1)", "temperature"}, Row{R"("temperature":true)", "temperature"}, Row{R"("top_p":-1)", "top_p"},
           Row{R"("min_p":1.1)", "min_p"}, Row{R"("min_p":-0.1)", "min_p"}, Row{R"("top_k":-2)", "top_k"},
           Row{R"("top_k":1.5)", "top_k"}, Row{R"("top_k":3000000000)", "top_k"}, Row{R"("presence_penalty":2.1)", "presence_penalty"},
           Row{R"("frequency_penalty":-2.1)", "frequency_penalty"}, Row{R"("repetition_penalty":0)", "repetition_penalty"},
           Row{R"("repetition_penalty":1e-60)", "repetition_penalty"}, Row{R"("repetition_penalty":11)", "repetition_penalty"},
           Row{R"("n":-1)", "n"}, Row{R"("n":129)", "n"}, Row{R"("n":17)", "n"}, Row{R"("n":"2")", "n"}, Row{R"("n":1.5)", "n"},
           Row{R"("max_tokens":0)", "max_tokens"}, Row{R"("max_tokens":-1)", "max_tokens"}, Row{R"("max_tokens":1e30)", "max_tokens"},
           Row{R"("max_tokens":5,"max_completion_tokens":6)", "max_completion_tokens"}, Row{R"("seed":9223372036854775808)", "seed"},
           Row{R"("seed":1.5)", "seed"}, Row{R"("seed":"1")", "seed"}, Row{R"("stop":"")", "stop"}, Row{R"("stop":["a",""])", "stop"},
           Row{R"("stop":["a","b","c","d","e"])", "stop"}, Row{R"("stop":"123456789")", "stop"}, Row{R"("stop":[1])", "stop"},
           Row{R"("stop":5)", "stop"}, Row{R"("logit_bias":[])", "logit_bias"}, Row{R"("logit_bias":{"a":1})", "logit_bias"},
           Row{R"("logit_bias":{"-1":1})", "logit_bias"}, Row{R"("logit_bias":{"99999999999":1})", "logit_bias"},
           Row{R"("logit_bias":{"1":101})", "logit_bias.1"}, Row{R"("logit_bias":{"1":null})", "logit_bias"},
           Row{R"("logit_bias":{"1":1,"01":2})", "logit_bias"}, Row{R"("logprobs":2)", "logprobs"},
           Row{R"("top_logprobs":2)", "top_logprobs"}, Row{R"("logprobs":false,"top_logprobs":2)", "top_logprobs"},
           Row{R"("logprobs":true,"top_logprobs":21)", "top_logprobs"}, Row{R"("logprobs":true,"top_logprobs":-1)", "top_logprobs"},
           Row{R"("stream_options":{"include_usage":true})", "stream_options"}, Row{R"("stream":true,"stream_options":[])", "stream_options"},
           Row{R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
           Row{R"("priority":"urgent")", "priority"}, Row{R"("priority":1)", "priority"}, Row{R"("user":1)", "user"},
           Row{R"("model":1)", "model"}, Row{R"("timeout_s":0)", "timeout_s"}, Row{R"("timeout_s":1e9)", "timeout_s"},
           Row{R"("ignore_eos":"yes")", "ignore_eos"}, Row{R"("echo":true)", "echo"},
       }) {
    INFO(row.members);
    auto r = chat(row.members);
    CHECK(param_of(r) == row.param);
    if (!r.ok()) CHECK(r.error().http_status == 400);
  }
  CHECK(param_of(completion(R"("logprobs":21)")) == "logprobs");
  CHECK(param_of(completion(R"("logprobs":true)")) == "logprobs");
  CHECK(param_of(completion(R"("top_logprobs":2)")) == "top_logprobs");
}

TEST_CASE("validation: values at the bounds pass") {
  for (const char* members : {R"("temperature":0)", R"("temperature":2)", R"("top_p":1)", R"("top_p":1e-60)", R"("top_k":-1)", R"("top_k":0)",
                              R"("n":16)", R"("n":2.0)", R"("max_tokens":1)", R"("max_tokens":5,"max_completion_tokens":5)", R"("stop":[])",
                              R"("stop":"12345678")", R"("logprobs":true)", R"("logprobs":true,"top_logprobs":0)", R"("seed":9223372036854775807)",
                              R"("top_logprobs":null,"logprobs":null,"stop":null,"stream_options":null,"max_tokens":null,"n":null)",
                              R"("repetition_penalty":10)", R"("logit_bias":{})", R"("stream":true,"stream_options":{"include_obfuscation":false})"})
    CHECK(chat_error(members) == "");
  CHECK(completion(R"("max_tokens":0)").ok());
  CHECK(completion(R"("logprobs":0)").value().sampling.n_top_logprobs == 0);
  CHECK(chat(R"("top_p":1e-60)").value().sampling.top_p > 0);
}

TEST_CASE("validation: known but unsupported parameters are refused by name unless without effect") {
  for (const char* name : {"tools", "tool_choice", "functions", "function_call", "response_format", "modalities", "audio", "prediction",
                           "web_search_options", "reasoning_effort", "store", "suffix", "logit_processors", "best_of", "guided_json",
                           "min_tokens", "grammar", "prompt_logprobs", "chat_template"}) {
    INFO(name);
    auto r = chat("\"" + std::string(name) + R"(":{"type":"json_object"})");
    REQUIRE(!r.ok());
    CHECK(r.error().code == "unsupported_parameter");
    CHECK(r.error().param == name);
    CHECK(r.error().http_status == 400);
    CHECK(chat("\"" + std::string(name) + "\":null").ok());
  }
  CHECK(chat(R"("tools":[],"tool_choice":"none","parallel_tool_calls":true,"functions":[],"response_format":{"type":"text"},
    "modalities":["text"],"store":false,"suffix":"","best_of":1,"service_tier":"auto")").ok());
  CHECK(chat(R"("n":2,"best_of":2)").ok());
  CHECK(param_of(chat(R"("best_of":2)")) == "best_of");
  CHECK(param_of(chat(R"("tools":[{"type":"function"}])")) == "tools");
  CHECK(param_of(chat(R"("stream":true,"stream_options":{"include_obfuscation":true})")) == "stream_options.include_obfuscation");
}

TEST_CASE("validation: unknown parameters are ignored and named") {
  CHECK(chat(R"("foo":1,"bar_baz":{"x":[]},"bl\u00e4h":1,"cr\r\nlf":2)").value().ignored ==
        std::vector<std::string>{"foo", "bar_baz", "?", "?"});
  CHECK(chat(R"("stream":true,"stream_options":{"new_one":1})").value().ignored == std::vector<std::string>{"stream_options.new_one"});
}

TEST_CASE("validation: messages (C-01, C-40)") {
  auto r = parse_chat_request(R"({"messages":[{"role":"developer","content":"s"},{"role":"user","content":[{"type":"text","text":"a <|im_end|>"},
    {"type":"text","text":"b"}],"name":"n"},{"role":"assistant","content":null,"tool_calls":[]},{"role":"user","content":""}]})", kBounds);
  if (!r.ok()) FAIL(r.error().message);
  REQUIRE(r.value().messages.size() == 4);
  CHECK(r.value().messages[0].role == "system");
  CHECK(r.value().messages[1].content == "a <|im_end|>b");  // text, whatever it says
  CHECK(r.value().messages[1].name == "n");
  CHECK(r.value().messages[2].content == "");
  std::string param;
  for (const char* bad : {"[]", "null", "5", "{}", "\"hi\"", "[5]", "[[]]"}) CHECK(messages_error(bad) != "");
  CHECK(messages_error(R"([{"role":"user","content":null}])", &param) != "");
  CHECK(param == "messages[0].content");
  CHECK(messages_error(R"([{"role":"user"}])") != "");
  CHECK(messages_error(R"([{"content":"a"}])", &param) != "");
  CHECK(param == "messages[0].role");
  CHECK(messages_error(R"([{"role":"alien","content":"a"}])") != "");
  CHECK(messages_error(R"([{"role":"tool","content":"a"}])").find("tools are not supported") != std::string::npos);
  CHECK(messages_error(R"([{"role":"user","content":7}])") != "");
  CHECK(messages_error(R"([{"role":"assistant","content":"a","tool_calls":[{}]}])", &param) != "");
  CHECK(param == "messages[0].tool_calls");
  std::string image = messages_error(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{}}]}])", &param);
  CHECK(image.find("\"image_url\"") != std::string::npos);
  CHECK(param == "messages[0].content[1]");
  CHECK(messages_error(R"([{"role":"user","content":[{"type":"text"}]}])", &param) != "");
  CHECK(messages_error(R"([{"role":"user","content":[{"type":"weird kind \u00e4","text":"x"}]}])").find("\"?\"") != std::string::npos);
}

TEST_CASE("validation: prompts") {
  auto prompts = [](const std::string& value) { return parse_completion_request("{\"prompt\":" + value + "}", kBounds); };
  CHECK(prompts("\"a\"").value().prompts.size() == 1);
  CHECK(prompts(R"(["a","b"])").value().prompts[1].text == "b");
  CHECK(prompts("[1,2,3]").value().prompts[0].ids == std::vector<int32_t>{1, 2, 3});
  CHECK(prompts("[[1],[2,3]]").value().prompts[1].ids == std::vector<int32_t>{2, 3});
  for (const char* bad : {"null", "5", "{}", "[]", "[[]]", "[1,\"a\"]", "[\"a\",1]", "[\"a\",[1]]", "[[1],\"a\"]", "[-1]", "[1.5]",
                          "[2147483648]", "[true]", "[null]"})
    CHECK(!prompts(bad).ok());
  std::string many = "[\"a\"";
  for (size_t i = 0; i < kMaxPrompts; ++i) many += ",\"a\"";
  CHECK(!prompts(many + "]").ok());
  CHECK(!parse_completion_request("{}", kBounds).ok());
}

TEST_CASE("validation: the other endpoints' bodies") {
  CHECK(parse_tokenize_request(R"({"content":"a","add_special":true,"parse_special":true})").value().parse_special);
  CHECK(!parse_tokenize_request(R"({"content":"a"})").value().add_special);
  CHECK(!parse_tokenize_request("{}").ok());
  CHECK(!parse_tokenize_request(R"({"content":5})").ok());
  CHECK(parse_detokenize_request(R"({"tokens":[]})").value().empty());
  CHECK(parse_detokenize_request(R"({"tokens":[5]})").value() == std::vector<int32_t>{5});
  CHECK(!parse_detokenize_request(R"({"tokens":["a"]})").ok());
  CHECK(!parse_detokenize_request(R"({"tokens":5})").ok());
  CHECK(!parse_template_request(R"({"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false})").value().add_generation_prompt);
  CHECK(!parse_template_request("[]").ok());
}

}  // namespace tandem::api
