// GET /status (the page) and /status/events (its sections, again and again as they change).
#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "api/connection_poller.h"
#include "api/endpoints.h"
#include "api/json_writer.h"
#include "api/sse.h"
#include "api/status_page.h"
#include "base/clock.h"

namespace tandem::api {
namespace {

// Each viewer holds a connection thread: they must never take the places of those who ask for tokens.
constexpr size_t kMaxViewers = 8;
constexpr int64_t kPeriodUs = 1'000'000;
constexpr auto kLookAround = std::chrono::milliseconds(50);
std::atomic<size_t> n_viewers{0};

PageSections current_sections(const ApiContext& api) {
  auto status = parse_json(api.service.status_json());  // ours: it parses
  return render_sections(status.ok() ? status.value() : JsonValue());
}

// The sections that differ from what this viewer has, as one JSON object; "" if none does.
std::string changes(const PageSections& sections, std::map<std::string, std::string>* seen) {
  JsonWriter out;
  bool has_any = false;
  out.begin_object();
  for (const auto& [name, html] : sections) {
    std::string& before = (*seen)[name];
    if (before == html) continue;
    before = html;
    out.key(name).string(html);
    has_any = true;
  }
  out.end_object();
  return has_any ? out.take() : "";
}

bool send_events(const ApiContext& api, const HttpRequest& http, ReplySink* sink) {
  SseWriter sse(sink);
  std::map<std::string, std::string> seen;
  int64_t due_us = 0;
  while (!http.is_stopping() && !http.is_client_gone()) {
    if (monotonic_us() < due_us) {
      std::this_thread::sleep_for(kLookAround);
      continue;
    }
    due_us = monotonic_us() + kPeriodUs;
    std::string json = changes(current_sections(api), &seen);
    bool is_due = monotonic_us() - sse.last_write_us() > api.config.server_sse_keepalive_ms * 1000;
    if (!json.empty() ? !sse.data(json) : is_due && !sse.keep_alive()) return false;
  }
  return false;  // the connection is closed; a browser comes again by itself
}

}  // namespace

HttpReply handle_status(const ApiContext& api, HttpRequest& http) {
  HttpReply reply;
  std::string nonce = http.id;  // 96 random bits
  reply.body = render_page(current_sections(api), nonce);
  reply.content_type = "text/html; charset=utf-8";
  reply.headers = {{"Content-Security-Policy", "default-src 'none'; script-src 'nonce-" + nonce + "'; style-src 'nonce-" + nonce +
                                                   "'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                   {"X-Content-Type-Options", "nosniff"},
                   {"Referrer-Policy", "no-referrer"},
                   {"Cache-Control", "no-store"}};
  return reply;
}

HttpReply handle_status_events(const ApiContext& api, HttpRequest& http) {
  auto counted = std::make_shared<CountGuard>(&n_viewers);
  if (n_viewers > kMaxViewers)
    return error_reply(api_error("too_many_connections",
                                 "the status page is open " + std::to_string(kMaxViewers) + " times already; reload it by hand", "", 10));
  HttpReply reply;
  reply.content_type = "text/event-stream";
  reply.headers.emplace_back("Cache-Control", "no-store");
  reply.stream = [&api, &http, counted](ReplySink& sink) { return send_events(api, http, &sink); };
  return reply;
}

}  // namespace tandem::api
