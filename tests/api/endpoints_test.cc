// The small endpoints.
#include "api/routes.h"
#include "server_fixture.h"

namespace tandem::api {

TEST_CASE("endpoints: health, ready, metrics, status") {
  ServerFixture f;
  f.service.ready = {Readiness::State::kWarming, "reading the model", "wait"};
  int port = f.start();
  CHECK(str(json(fetch(port, get("/health")).body), "status") == "ok");
  struct Row {
    Readiness::State state;
    const char* name;
    int status;
  };
  for (const Row& row : {Row{Readiness::State::kReady, "ready", 200}, Row{Readiness::State::kDegraded, "degraded", 200},
                         Row{Readiness::State::kWarming, "warming", 503}, Row{Readiness::State::kDead, "dead", 503},
                         Row{Readiness::State::kDraining, "draining", 503}}) {
    f.service.ready.state = row.state;
    RawReply reply = fetch(port, get("/ready"));
    CHECK(reply.status == row.status);
    CHECK(reply.headers.count("retry-after") == (row.status == 503 ? 1 : 0));
    JsonValue v = json(reply.body);
    CHECK(str(v, "status") == row.name);
    CHECK(str(v, "cause") == "reading the model");
    CHECK(str(v, "remedy") == "wait");
  }
  RawReply metrics = fetch(port, get("/metrics"));
  CHECK(metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8");
  CHECK(metrics.body == f.service.metrics);
  CHECK(str(json(fetch(port, get("/status.json")).body), "state") == "ready");
}

TEST_CASE("endpoints: models") {
  ServerFixture f;
  int port = f.start();
  JsonValue list = json(fetch(port, get("/v1/models")).body);
  CHECK(str(list, "object") == "list");
  CHECK(str(list, "data", 0, "id") == "fake-model");
  CHECK(str(list, "data", 0, "object") == "model");
  CHECK(num(list, "data", 0, "created") == 1700000000);
  CHECK(num(list, "data", 0, "meta", "context_tokens") == 4096);
  CHECK(str(json(fetch(port, get("/v1/models/fake-model")).body), "id") == "fake-model");
  CHECK(str(json(fetch(port, get("/v1/models/fake%2Dmodel")).body), "id") == "fake-model");
  CHECK(fetch(port, get("/v1/models/other")).status == 404);
  CHECK(fetch(port, get("/v1/models/%00%zz")).status == 404);
}

TEST_CASE("endpoints: tokenize, detokenize, apply-template") {
  ServerFixture f;
  int port = f.start();
  CHECK(fetch(port, post("/tokenize", R"({"content":"ab","parse_special":true})")).body == R"({"tokens":[97,98]})");
  CHECK(f.service.last_prepare().parse_special);
  CHECK(!f.service.last_prepare().add_special);
  CHECK(fetch(port, post("/tokenize", R"({"content":""})")).body == R"({"tokens":[]})");
  CHECK(fetch(port, post("/detokenize", R"({"tokens":[97,98]})")).body == R"({"content":"ab"})");
  CHECK(fetch(port, post("/detokenize", R"({"tokens":[]})")).body == R"({"content":""})");
  CHECK(fetch(port, post("/apply-template", R"({"messages":[{"role":"user","content":"q"}]})")).body == R"({"prompt":"<user>q"})");
  CHECK(fetch(port, post("/apply-template", R"({"messages":[]})")).status == 400);
  CHECK(fetch(port, post("/tokenize", R"({})")).status == 400);
  CHECK(f.service.rejected().empty());  // not inference: no row
}

TEST_CASE("endpoints: the request log") {
  ServerFixture f;
  ipc::RequestRecord row;
  row.id = "req_1";
  row.received_us = 1'764'430'496'789'012;
  row.status = "stop";
  row.seed = UINT64_MAX;
  row.queue_ms = 1.25;
  f.service.rows = {row};
  int port = f.start();
  RawReply reply = fetch(port, get("/v1/requests?since=1764430496.5&until=2025-11-29T15:34:56.789012Z&status=stop&client=a%26b&id=req_1&limit=5"));
  REQUIRE(reply.status == 200);
  ipc::RecordQuery q = f.service.last_query();
  CHECK(q.since_us == 1'764'430'496'500'000);
  CHECK(q.until_us == 1'764'430'496'789'012);
  CHECK(q.status == "stop");
  CHECK(q.client == "a&b");
  CHECK(q.id == "req_1");
  CHECK(q.limit == 5);
  JsonValue v = json(reply.body);
  CHECK(str(v, "data", 0, "received") == "2025-11-29T15:34:56.789012Z");
  CHECK(reply.body.find("\"seed\":18446744073709551615") != std::string::npos);
  CHECK(at(v, "data", 0).find("prompt_text") == nullptr);
  for (const char* bad : {"limit=0", "limit=10001", "limit=x", "limit=1x", "status=done", "since=yesterday", "since=-5",
                          "since=2025-11-29", "since=2025-11-29T15:34:56", "colour=red"})
    CHECK(fetch(port, get("/v1/requests?" + std::string(bad))).status == 400);
  CHECK(fetch(port, get("/v1/requests")).status == 200);
  CHECK(f.service.last_query().limit == 100);
}

TEST_CASE("endpoints: the OpenAPI document has every route") {
  for (const Route& route : routes()) {
    INFO(route.path);
    CHECK(is_documented(route));
  }
  ServerFixture f;
  RawReply reply = fetch(f.start(), get("/openapi.json"));
  REQUIRE(reply.status == 200);
  JsonValue v = json(reply.body);
  CHECK(at(v, "paths").as_object()->size() == routes().size());
  CHECK(str(v, "paths", "/v1/models/{name}", "get", "summary").find("by name") != std::string::npos);
  CHECK(str(v, "paths", "/v1/completions", "post", "requestBody", "content", "application/json", "schema", "$ref") ==
        "#/components/schemas/CompletionRequest");
}

}  // namespace tandem::api
