// POST /admin/drain, /undrain, /reload, /restart-worker, /degrade and GET /admin/config, /admin/bundle. The access rules let administrators
// through only; each action is one line in the process log, with who asked.
#include "api/endpoints.h"
#include "api/json_fields.h"
#include "api/json_writer.h"
#include "api/request_rows.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/tar_archive.h"

namespace tandem::api {
namespace {

using Action = AdminCommand::Action;
constexpr int kBundleRows = 1000;

struct Row {
  const char* path;
  Action action;
};
constexpr Row kActions[] = {{"/admin/drain", Action::kDrain},
                            {"/admin/undrain", Action::kUndrain},
                            {"/admin/reload", Action::kReload},
                            {"/admin/restart-worker", Action::kRestartWorker},
                            {"/admin/degrade", Action::kDegrade}};

// The body may be empty or an object: {"pid": N} for restart-worker, {"rung": NAME, "pin": "on"|"off"|"clear"} for
// degrade, no member for the others.
std::optional<ApiError> read_body(const HttpRequest& http, AdminCommand* command) {
  if (http.body.empty() && command->action != Action::kDegrade) return std::nullopt;
  auto body = parse_json(http.body);
  if (!body.ok()) return body.error();
  if (body.value().as_object() == nullptr) return api_error("invalid_value", "the body must be a JSON object or empty");
  JsonFields fields(*body.value().as_object(), "");
  if (command->action == Action::kRestartWorker) command->pid = fields.integer("pid", 1, INT32_MAX).value_or(0);
  if (command->action == Action::kDegrade) {
    command->rung = fields.string("rung").value_or("");
    std::string pin = fields.string("pin").value_or("");
    if (pin != "on" && pin != "off" && pin != "clear") fields.fail("pin", "must be \"on\", \"off\" or \"clear\"");
    if (pin != "clear") command->pin = pin == "on";
  }
  if (fields.error()) return fields.error();
  auto unknown = fields.not_taken();
  if (unknown.empty()) return std::nullopt;
  return api_error("invalid_value", "`" + unknown.front() + "` is not known here", unknown.front());
}

// Rows for support: what was asked and answered is nobody's business but the client's.
std::string rows_without_text(const ApiContext& api) {
  ipc::RecordQuery query;
  query.limit = kBundleRows;
  auto rows = api.service.query_log(query);
  if (!rows.ok()) return api_error_json(rows.error());
  for (ipc::RequestRecord& row : rows.value()) row.prompt_text.clear(), row.completion_text.clear();
  return request_rows_json(rows.value());
}

}  // namespace

HttpReply handle_admin(const ApiContext& api, HttpRequest& http) {
  AdminCommand command;
  for (const Row& row : kActions)
    if (http.path == row.path) command.action = row.action;
  if (auto error = read_body(http, &command)) return error_reply(*error);
  log_warn("admin action", {{"action", http.path}, {"client", http.client}, {"peer", http.remote_addr}, {"request_id", http.id}});
  auto done = api.service.admin(command);
  if (!done.ok()) return error_reply(done.error());
  JsonWriter out;
  out.begin_object().key("done").string(done.value()).end_object();
  return json_reply(out.take());
}

HttpReply handle_config(const ApiContext& api, HttpRequest&) {
  HttpReply reply;
  reply.body = api.service.config_text();
  reply.content_type = "application/toml; charset=utf-8";
  return reply;
}

HttpReply handle_bundle(const ApiContext& api, HttpRequest& http) {
  log_warn("admin action", {{"action", http.path}, {"client", http.client}, {"peer", http.remote_addr}, {"request_id", http.id}});
  const std::string folder = "tandem-bundle/";
  std::vector<ArchiveEntry> files = {
      {folder + "README.txt", "Support bundle of Tandem " TANDEM_VERSION ", made " + format_utc(utc_us()) +
                                  ".\nNo keys, prompts or completions are in it. status.json has versions, faults and the last 15 "
                                  "minutes.\n`tandem bundle` on the box adds what `tandem doctor` finds.\n"},
      {folder + "config.toml", api.service.config_text()},
      {folder + "status.json", api.service.status_json() + "\n"},
      {folder + "metrics.txt", api.service.metrics_text()},
      {folder + "requests.json", rows_without_text(api) + "\n"}};
  auto archive = make_tar_gz(files, utc_us() / 1'000'000);
  if (!archive.ok()) return error_reply(api_error("internal_error", archive.status().message()));
  HttpReply reply;
  reply.body = std::move(archive).value();
  reply.content_type = "application/gzip";
  reply.headers = {{"Content-Disposition", "attachment; filename=\"tandem-bundle.tar.gz\""}, {"Cache-Control", "no-store"}};
  return reply;
}

}  // namespace tandem::api
