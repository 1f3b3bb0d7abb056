// GET /health, /ready, /metrics, /status.json: none of them waits for a worker.
#include "api/endpoints.h"
#include "api/json_writer.h"

namespace tandem::api {
namespace {

constexpr int kRetryAfterSeconds = 5;

const char* state_name(Readiness::State state) {
  constexpr const char* kNames[] = {"ready", "degraded", "warming", "dead", "draining"};
  return kNames[static_cast<int>(state)];
}

}  // namespace

HttpReply handle_health(const ApiContext&, HttpRequest&) { return json_reply(R"({"status":"ok"})"); }

HttpReply handle_ready(const ApiContext& api, HttpRequest&) {
  Readiness readiness = api.service.readiness();
  bool serves = readiness.state == Readiness::State::kReady || readiness.state == Readiness::State::kDegraded;
  JsonWriter out;
  out.begin_object().key("status").string(state_name(readiness.state));
  out.key("cause").string(readiness.cause).key("remedy").string(readiness.remedy).end_object();
  HttpReply reply = json_reply(out.take());
  reply.status = serves ? 200 : 503;
  if (!serves) reply.headers.emplace_back("Retry-After", std::to_string(kRetryAfterSeconds));
  return reply;
}

HttpReply handle_metrics(const ApiContext& api, HttpRequest&) {
  HttpReply reply;
  reply.body = api.service.metrics_text();
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return reply;
}

HttpReply handle_status_json(const ApiContext& api, HttpRequest&) { return json_reply(api.service.status_json()); }

}  // namespace tandem::api
