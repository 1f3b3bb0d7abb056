// GET /openapi.json: the table of routes as an OpenAPI 3.1 document. A route without a row in kDocs fails a test. Schemas
// say what validation.cc accepts; schemathesis holds the two against each other (tests/process/test_openapi.py).
#include "api/endpoints.h"
#include "api/json_writer.h"
#include "api/routes.h"

namespace tandem::api {
namespace {

struct Doc {
  const char* path;
  const char* summary;
  const char* body;   // name in kSchemas; null: no body
  const char* reply;  // content type of 200
};
constexpr const char* kJson = "application/json";
constexpr Doc kDocs[] = {
    {"/v1/chat/completions", "Answer to a conversation; with `stream` as server-sent events", "ChatRequest", kJson},
    {"/v1/completions", "Continuation of one or more prompts; with `stream` as server-sent events", "CompletionRequest", kJson},
    {"/v1/models", "The served model", nullptr, kJson},
    {"/v1/models/*", "The served model, by name", nullptr, kJson},
    {"/tokenize", "Token ids of a text", "TokenizeRequest", kJson},
    {"/detokenize", "Text of token ids", "DetokenizeRequest", kJson},
    {"/apply-template", "The prompt that a conversation becomes", "TemplateRequest", kJson},
    {"/health", "Whether the process lives", nullptr, kJson},
    {"/ready", "Whether requests are served: 200 ready or degraded, 503 with the cause", nullptr, kJson},
    {"/metrics", "Prometheus text", nullptr, "text/plain"},
    {"/status", "Status page", nullptr, "text/html"},
    {"/status/events", "What the status page shows, as server-sent events", nullptr, "text/event-stream"},
    {"/status.json", "State of the appliance", nullptr, kJson},
    {"/v1/requests", "The request log, newest first", nullptr, kJson},
    {"/admin/drain", "Admit no more requests", "Empty", kJson},
    {"/admin/undrain", "Admit requests again", "Empty", kJson},
    {"/admin/reload", "Read configuration, keys and certificates again", "Empty", kJson},
    {"/admin/restart-worker", "End a worker; another takes over its requests", "RestartRequest", kJson},
    {"/admin/degrade", "Pin a rung of the degradation ladder", "DegradeRequest", kJson},
    {"/admin/config", "The configuration in force", nullptr, "application/toml"},
    {"/admin/bundle", "Support bundle", nullptr, "application/gzip"},
    {"/openapi.json", "This document", nullptr, kJson},
};

// What chat and completions share.
constexpr const char* kSampling = R"("model":{"type":["string","null"]},
"temperature":{"type":["number","null"],"minimum":0,"maximum":2},
"top_p":{"type":["number","null"],"exclusiveMinimum":0,"maximum":1},
"min_p":{"type":["number","null"],"minimum":0,"maximum":1},
"top_k":{"type":["integer","null"],"minimum":-1,"maximum":2147483647},
"repetition_penalty":{"type":["number","null"],"exclusiveMinimum":0,"maximum":10},
"presence_penalty":{"type":["number","null"],"minimum":-2,"maximum":2},
"frequency_penalty":{"type":["number","null"],"minimum":-2,"maximum":2},
"logit_bias":{"type":["object","null"],"maxProperties":1024,"propertyNames":{"pattern":"^[0-9]{1,6}$"},"additionalProperties":{"type":"number","minimum":-100,"maximum":100}},
"seed":{"type":["integer","null"],"minimum":-9223372036854775808,"maximum":9223372036854775807},
"stop":{"oneOf":[{"type":"null"},{"type":"string","minLength":1},{"type":"array","items":{"type":"string","minLength":1},"maxItems":16}]},
"n":{"type":["integer","null"],"minimum":1,"maximum":16},
"stream":{"type":["boolean","null"]},
"ignore_eos":{"type":["boolean","null"]},
"priority":{"enum":["high","normal","low",null]},
"timeout_s":{"type":["number","null"],"exclusiveMinimum":0,"maximum":86400},
"user":{"type":["string","null"]})";

constexpr const char* kMessages = R"("messages":{"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],"properties":{
"role":{"enum":["system","developer","user","assistant"]},
"name":{"type":"string"},
"content":{"oneOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"object","required":["type","text"],"properties":{"type":{"const":"text"},"text":{"type":"string"}}}}]}}}})";

std::string schemas() {
  const std::string sampling = kSampling, messages = kMessages, ids = R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":2147483647}})";
  auto object = [](const std::string& properties, const std::string& required) {
    return R"({"type":"object","required":[)" + required + R"(],"properties":{)" + properties + "}}";
  };
  return R"({"Error":{"type":"object","required":["error"],"properties":{"error":{"type":"object","required":["message","type","param","code"],"properties":{
"message":{"type":"string"},"type":{"type":"string"},"param":{"type":["string","null"]},"code":{"type":"string"}}}}},
"ChatRequest":)" +
         object(messages + "," + sampling +
                    R"(,"max_tokens":{"type":["integer","null"],"minimum":1,"maximum":2147483647},"logprobs":{"type":["boolean","null"]},"top_logprobs":{"type":["integer","null"],"minimum":0,"maximum":20})",
                "\"messages\"") +
         ",\"CompletionRequest\":" +
         object(R"("prompt":{"oneOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":128,"items":{"type":"string"}},)" + ids +
                    R"(,{"type":"array","minItems":1,"maxItems":128,"items":)" + ids + "}]}," + sampling +
                    R"(,"max_tokens":{"type":["integer","null"],"minimum":0,"maximum":2147483647},"logprobs":{"type":["integer","null"],"minimum":0,"maximum":20},"echo":{"type":["boolean","null"]})",
                "\"prompt\"") +
         ",\"TokenizeRequest\":" + object(R"("content":{"type":"string"},"add_special":{"type":"boolean"},"parse_special":{"type":"boolean"})", "\"content\"") +
         ",\"DetokenizeRequest\":" + object("\"tokens\":" + ids, "\"tokens\"") + ",\"TemplateRequest\":" + object(messages, "\"messages\"") +
         R"(,"Empty":{"type":"object","maxProperties":0},"RestartRequest":)" + object(R"("pid":{"type":"integer","minimum":1,"maximum":2147483647})", "") +
         ",\"DegradeRequest\":" + object(R"("rung":{"enum":["logprobs","weights-4bit","batch","tokens","shed"]},"pin":{"enum":["on","off","clear"]})", "\"rung\",\"pin\"") + "}";
}

const Doc* doc_of(const Route& route) {
  for (const Doc& doc : kDocs)
    if (std::string_view(doc.path) == route.path) return &doc;
  return nullptr;
}

void write_operation(const Route& route, const Doc& doc, JsonWriter* out) {
  std::string method = route.method;
  for (char& c : method) c = static_cast<char>(c | 32);
  out->key(method).begin_object().key("summary").string(doc.summary);
  if (std::string_view(route.path).find("/*") != std::string_view::npos)
    out->key("parameters").raw(R"([{"name":"name","in":"path","required":true,"schema":{"type":"string","minLength":1}}])");
  if (doc.body != nullptr)
    out->key("requestBody").raw(std::string(R"({"required":true,"content":{"application/json":{"schema":{"$ref":"#/components/schemas/)") + doc.body + R"("}}}})");
  out->key("responses").begin_object();
  std::string streams = route.endpoint != nullptr ? R"(,"text/event-stream":{})" : "";
  out->key("200").raw(std::string(R"({"description":"done","content":{")") + doc.reply + "\":{}" + streams + "}}");
  for (const char* range : {"4XX", "5XX"})
    out->key(range).raw(route.is_probe ? R"({"description":"not now, with the cause","content":{"application/json":{}}})"
                                       : R"({"description":"refused or failed","content":{"application/json":{"schema":{"$ref":"#/components/schemas/Error"}}}})");
  out->end_object();
  out->key("security").raw(route.access == Access::kOpen ? "[]" : R"([{},{"key":[]}])");
  out->end_object();
}

}  // namespace

bool is_documented(const Route& route) { return doc_of(route) != nullptr; }

HttpReply handle_openapi(const ApiContext&, HttpRequest&) {
  JsonWriter out;
  out.begin_object().key("openapi").string("3.1.0");
  out.key("info").begin_object().key("title").string("Tandem").key("version").string(TANDEM_VERSION).end_object();
  out.key("paths").begin_object();
  for (const Route& route : routes()) {  // no path has two methods
    const Doc* doc = doc_of(route);
    if (doc == nullptr) continue;
    std::string path = route.path;
    if (path.size() > 2 && path.compare(path.size() - 2, 2, "/*") == 0) path.replace(path.size() - 1, 1, "{name}");
    out.key(path).begin_object();
    write_operation(route, *doc, &out);
    out.end_object();
  }
  out.end_object();
  out.key("components").begin_object().key("schemas").raw(schemas());
  out.key("securitySchemes").raw(R"({"key":{"type":"http","scheme":"bearer"}})").end_object().end_object();
  return json_reply(out.take());
}

}  // namespace tandem::api
