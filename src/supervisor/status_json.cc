#include "supervisor/status_json.h"

#include "api/json_writer.h"

namespace tandem {
namespace {

using api::JsonWriter;

void field(JsonWriter& out, const char* name, const std::string& text) {
  out.key(name).string(text);
}
void field(JsonWriter& out, const char* name, int64_t value) { out.key(name).integer(value); }

void write_model(JsonWriter& out, const StatusView& view) {
  out.key("model").begin_object();
  field(out, "name", view.model_name);
  field(out, "path", view.model_path);
  if (view.model) {
    const ipc::ModelInfo& m = *view.model;
    field(out, "architecture", m.architecture);
    field(out, "quantization", m.quantization);
    field(out, "parameters", m.n_parameters);
    field(out, "file_bytes", m.file_bytes);
    field(out, "weight_bytes", m.weight_bytes);
    field(out, "context_tokens", m.context_tokens);
    field(out, "vocab_size", m.vocab_size);
    field(out, "layers", m.n_layers);
    out.key("has_chat_template").boolean(m.has_chat_template);
    field(out, "chat_template_error", m.chat_template_error);
    field(out, "device", m.device);
    field(out, "isa", m.isa);
    field(out, "max_batch_size", m.max_batch_size);
  }
  out.end_object();
}

void write_worker(JsonWriter& out, const StatusView& view) {
  out.key("workers").begin_array().begin_object();
  field(out, "role", "both");
  field(out, "state", view.worker_state);
  field(out, "pid", view.worker_pid);
  field(out, "generation", static_cast<int64_t>(view.worker_generation));
  field(out, "restarts", view.worker_restarts);
  field(out, "last_end", view.worker_last_end);
  field(out, "steps", static_cast<int64_t>(view.heartbeat.steps));
  field(out, "batch", view.heartbeat.last_batch);
  out.end_object().end_array();
}

void write_kv(JsonWriter& out, const StatusView& view) {
  out.key("kv").begin_object();
  if (view.model) {
    field(out, "bytes_per_token", view.model->kv_bytes_per_token);
    field(out, "pool_bytes", view.model->kv_pool_bytes);
    field(out, "swap_pool_bytes", view.model->swap_pool_bytes);
    field(out, "pool_tokens", view.model->pool_tokens);
  }
  field(out, "pages_used", view.heartbeat.pages_used);
  field(out, "pages_free", view.heartbeat.pages_free);
  field(out, "pages_shared", view.heartbeat.pages_shared);
  field(out, "pages_swapped", view.heartbeat.pages_swapped);
  field(out, "preemptions", static_cast<int64_t>(view.heartbeat.preemptions));
  field(out, "swaps", static_cast<int64_t>(view.heartbeat.swaps));
  field(out, "batch_limit", view.heartbeat.batch_limit);
  out.end_object();
}

void write_queue(JsonWriter& out, const StatusView& view) {
  out.key("queue").begin_object();
  field(out, "running", static_cast<int64_t>(view.running));
  out.key("waiting").begin_object();
  constexpr const char* kNames[] = {"high", "normal", "low"};
  for (int i = 0; i < 3; ++i) field(out, kNames[i], static_cast<int64_t>(view.waiting[i]));
  out.end_object().end_object();
}

void write_requests(JsonWriter& out, const StatusView& view) {
  out.key("requests").begin_array();
  for (const LiveRequest& r : view.requests) {
    out.begin_object();
    field(out, "id", r.id);
    field(out, "phase", r.phase);
    field(out, "priority", r.priority);
    field(out, "age_ms", r.age_ms);
    field(out, "prompt_tokens", r.prompt_tokens);
    field(out, "completion_tokens", r.completion_tokens);
    field(out, "dispatches", r.n_dispatches);
    out.end_object();
  }
  out.end_array();
  out.key("is_current").boolean(view.has_requests);
}

}  // namespace

const char* readiness_name(api::Readiness::State state) {
  constexpr const char* kNames[] = {"ready", "degraded", "warming", "dead", "draining"};
  return kNames[static_cast<int>(state)];
}

std::string status_json(const StatusView& view, const RequestLogCounters& log,
                        const Status& log_status, int64_t now_us) {
  JsonWriter out;
  out.begin_object();
  field(out, "version", TANDEM_VERSION);
  out.key("uptime_seconds").number(static_cast<double>(now_us - view.started_us) / 1e6);
  out.key("readiness").begin_object();
  field(out, "state", readiness_name(view.readiness.state));
  field(out, "cause", view.readiness.cause);
  field(out, "remedy", view.readiness.remedy);
  out.end_object();
  write_model(out, view);
  write_worker(out, view);
  write_queue(out, view);
  write_requests(out, view);
  write_kv(out, view);
  out.key("request_log").begin_object();
  field(out, "rows_written", static_cast<int64_t>(log.rows_written));
  field(out, "rows_dropped", static_cast<int64_t>(log.rows_dropped));
  field(out, "bytes_written", static_cast<int64_t>(log.bytes_written));
  field(out, "problem", log_status.ok() ? "" : log_status.message());
  out.end_object().end_object();
  return out.take();
}

}  // namespace tandem
