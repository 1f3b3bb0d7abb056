#include "api/api_server.h"

#include <optional>

#include "api/access.h"
#include "api/http_server.h"
#include "api/keys.h"
#include "api/listen_socket.h"
#include "base/clock.h"
#include "base/log.h"

namespace tandem::api {
namespace {

HttpLimits http_limits(const Config& c) {
  HttpLimits limits;
  limits.max_connections = static_cast<size_t>(c.server_max_connections);
  limits.max_header_bytes = static_cast<size_t>(c.server_max_header_bytes);
  limits.max_body_bytes = static_cast<size_t>(c.server_max_body_bytes);
  limits.header_timeout_ms = c.server_header_timeout_ms;
  limits.body_timeout_ms = c.server_body_timeout_ms;
  limits.idle_timeout_ms = c.server_idle_timeout_ms;
  limits.slow_reader_timeout_ms = c.server_slow_reader_timeout_ms;
  return limits;
}

const Route* route_of(const HttpRequest& http) {
  for (const Route* route : find_routes(http.path))
    if (http.method == route->method) return route;
  return nullptr;
}

}  // namespace

struct ApiServer::Impl {
  Config config;
  RequestFilter filter;
  LiveLimits limits;
  ApiContext context;
  KeyRing keys;
  std::unique_ptr<TlsServer> tls;
  KeyLimits key_limits;
  BoundAddress bound;
  bool is_inherited = false;
  std::optional<AccessRules> access;
  std::optional<HttpServer> http;  // last: its threads use the rest

  Impl(const Config& c, InferenceService* service) : config(c), filter(config), limits(config), context{config, *service, filter, limits}, keys(config) {}

  Status check_binding_rule() const {
    if (bound.is_loopback || keys.has_user_keys() || config.server_allow_unauthenticated) return ok_status();
    return invalid_argument("server.listen is bound to " + bound.text() +
                            ", which other machines can reach, and there is no user key: add one to "
                            "auth.user_keys_file, listen on 127.0.0.1, or set server.allow_unauthenticated = true");
  }

  HttpReply handle(HttpRequest& http_request) {
    const Route* route = route_of(http_request);
    if (route == nullptr && http_request.method == "HEAD")
      route = find_routes(http_request.path).front();  // HEAD was accepted as GET by the access check
    if (route->endpoint == nullptr || http_request.client.empty()) return route->handler(context, http_request);
    auto place = key_limits.take(http_request.client, http_request.key_limit, monotonic_us());
    if (!place.ok()) return error_reply(place.error());
    HttpReply reply = route->handler(context, http_request);
    if (reply.stream) {  // the place is held until the stream has ended
      reply.stream = [held = place.value(), stream = std::move(reply.stream)](ReplySink& sink) { return stream(sink); };
    }
    return reply;
  }

  void finish(const HttpRequest& request, HttpReply* reply) {
    access->add_cors_headers(request, reply);
    const Route* route = route_of(request);
    if (route == nullptr || route->endpoint == nullptr || !reply->error || reply->is_logged) return;
    ipc::RequestRecord record;
    int64_t took_us = monotonic_us() - request.received_us;
    record.id = request.id;
    record.finished_us = utc_us();
    record.received_us = record.finished_us - took_us;
    record.client = request.client;
    record.endpoint = route->endpoint;
    record.model = context.service.model_name();
    record.priority = priority_name(request.priority);
    record.total_ms = static_cast<double>(took_us) / 1000;
    bool is_gone = reply->error->code == "client_gone";
    record.status = is_gone ? "cancelled" : reply->error->code == "deadline_exceeded" ? "deadline" : "rejected";
    record.http_status = reply->status;
    record.error = reply->error->code + ": " + reply->error->message;
    context.service.record_rejected(std::move(record));
  }
};

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiServer::~ApiServer() { stop(); }

Result<std::unique_ptr<ApiServer>> ApiServer::start(const Config& config, InferenceService* service) {
  return start(config, service, Options{});
}

Result<std::unique_ptr<ApiServer>> ApiServer::start(const Config& config, InferenceService* service, Options options) {
  auto impl = std::make_unique<Impl>(config, service);
  CHECK_OK(impl->keys.reload());
  CHECK_OK(impl->filter.reload());
  UniqueFd listening = std::move(options.listen_fd);
  impl->is_inherited = listening.valid();
  if (!impl->is_inherited) {
    CHECK_ASSIGN(listening, listen_on(config.server_listen));
  }
  CHECK_ASSIGN(impl->bound, bound_address(listening.get()));
  if (impl->is_inherited) CHECK_OK(adopt_socket(listening.get(), config.server_listen, impl->bound));
  CHECK_OK(impl->check_binding_rule());
  if (!config.server_tls_certificate_file.empty()) {
    CHECK_ASSIGN(impl->tls, TlsServer::create(config.server_tls_certificate_file, config.server_tls_key_file));
  }
  impl->access.emplace(impl->config, impl->bound, &impl->keys);
  Impl* self = impl.get();
  HttpHooks hooks;
  hooks.is_probe = is_probe_path;
  hooks.precheck = [self](HttpRequest& request) { return self->access->check(&request); };
  hooks.handle = [self](HttpRequest& request) { return self->handle(request); };
  hooks.finish = [self](const HttpRequest& request, HttpReply* reply) { self->finish(request, reply); };
  HttpLimits limits = http_limits(config);
  limits.tls = impl->tls.get();
  impl->http.emplace(std::move(listening), limits, std::move(hooks));
  log_info("api listening", {{"address", impl->bound.text()}, {"tls", impl->tls ? "on" : "off"}});
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

int ApiServer::port() const { return impl_->bound.port; }
std::string ApiServer::address() const { return impl_->bound.text(); }

Status ApiServer::reload_files() {
  Status keys = impl_->keys.reload(!impl_->bound.is_loopback && !impl_->config.server_allow_unauthenticated);
  Status filter = impl_->filter.reload();  // also when the keys failed, and so on
  Status tls = impl_->tls ? impl_->tls->reload() : ok_status();
  return !keys.ok() ? keys : !filter.ok() ? filter : tls;
}

void ApiServer::reload_limits(const Config& config) { impl_->limits.take(config); }

void ApiServer::hand_over() {
  if (impl_->is_inherited) impl_->http->leave_socket();
}

void ApiServer::stop() { impl_->http->stop(); }

}  // namespace tandem::api
