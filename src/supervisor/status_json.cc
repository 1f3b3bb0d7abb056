#include "supervisor/status_json.h"

#include "api/json_writer.h"
#include "base/clock.h"
#include "supervisor/box_facts.h"

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
  field(out, "sha256", view.model_sha256);
  if (view.model) {
    const ipc::ModelInfo& m = *view.model;
    field(out, "architecture", m.architecture);
    field(out, "quantization", m.quantization);
    field(out, "parameters", m.n_parameters);
    field(out, "file_bytes", m.file_bytes);
    field(out, "weight_bytes", m.weight_bytes);
    out.key("weight_sets").begin_object();
    field(out, "full_bytes", m.full_set_bytes);
    field(out, "lean_bytes", m.lean_set_bytes);
    out.key("full_step_ms").number(m.full_step_ms);
    out.key("lean_step_ms").number(m.lean_step_ms);
    out.key("full_perplexity").number(m.full_perplexity);
    out.key("lean_perplexity").number(m.lean_perplexity);
    field(out, "no_lean_reason", m.no_lean_reason);
    field(out, "lean_file", m.lean_file);
    out.end_object();
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

void write_pages(JsonWriter& out, const ipc::Heartbeat& h) {
  field(out, "pages_used", h.pages_used);
  field(out, "pages_free", h.pages_free);
  field(out, "pages_shared", h.pages_shared);
  field(out, "pages_swapped", h.pages_swapped);
  field(out, "pages_lent", h.pages_lent);
  field(out, "pages_readopted", static_cast<int64_t>(h.pages_readopted));
  field(out, "pages_imported", static_cast<int64_t>(h.pages_imported));
}

void write_workers(JsonWriter& out, const StatusView& view, const BoxFacts& box) {
  out.key("workers").begin_array();
  for (size_t i = 0; i < view.workers.size(); ++i) {
    const WorkerView& w = view.workers[i];
    out.begin_object();
    field(out, "role", w.role);
    field(out, "number", w.number);
    field(out, "state", w.state);
    field(out, "cause", w.cause);
    field(out, "pid", w.pid);
    field(out, "generation", static_cast<int64_t>(w.generation));
    field(out, "restarts", w.restarts);
    field(out, "last_end", w.last_end);
    field(out, "device", w.device);
    field(out, "device_trouble", w.device_trouble);
    field(out, "steps", static_cast<int64_t>(w.heartbeat.steps));
    field(out, "batch", w.heartbeat.n_running > 0 ? w.heartbeat.last_batch : 0);
    field(out, "device_layers", w.device_layers);
    field(out, "isa", w.isa);
    field(out, "rss_bytes", box.worker_rss_bytes[i]);
    field(out, "computed_tokens", static_cast<int64_t>(w.heartbeat.computed_tokens));
    field(out, "pool_bytes", w.pool_bytes);
    write_pages(out, w.heartbeat);
    field(out, "bytes_imported", static_cast<int64_t>(w.heartbeat.bytes_imported));
    out.key("import_seconds").number(w.heartbeat.import_seconds);
    out.end_object();
  }
  out.end_array();
}

// Null where no lengths are decided on; from > to: none.
void write_placement(JsonWriter& out, const StatusView& view) {
  out.key("device_prompts");
  if (!view.device_prompts) {
    out.null();
    return;
  }
  out.begin_object();
  field(out, "from_tokens", view.device_prompts->from);
  field(out, "to_tokens", view.device_prompts->to);
  out.end_object();
}

// All workers together.
void write_kv(JsonWriter& out, const StatusView& view) {
  ipc::Heartbeat sum;
  int64_t pool_bytes = 0;
  for (const WorkerView& w : view.workers) {
    const ipc::Heartbeat& h = w.heartbeat;
    sum.pages_used += h.pages_used, sum.pages_free += h.pages_free, sum.pages_shared += h.pages_shared;
    sum.pages_lent += h.pages_lent, sum.pages_readopted += h.pages_readopted;
    sum.pages_swapped += h.pages_swapped, sum.swaps += h.swaps, sum.batch_limit += h.batch_limit;
    sum.pages_imported += h.pages_imported, sum.preemptions += h.preemptions;
    pool_bytes += w.pool_bytes;
  }
  out.key("kv").begin_object();
  if (view.model) {
    field(out, "bytes_per_token", view.model->kv_bytes_per_token);
    field(out, "pool_bytes", pool_bytes);
    field(out, "swap_pool_bytes", view.model->swap_pool_bytes);
    field(out, "pool_tokens", view.model->pool_tokens);
  }
  write_pages(out, sum);
  field(out, "preemptions", static_cast<int64_t>(sum.preemptions));
  field(out, "swaps", static_cast<int64_t>(sum.swaps));
  field(out, "batch_limit", sum.batch_limit);
  out.end_object();
}

// What all processes together will hold at most, as the worker predicted it when it started.
void write_memory(JsonWriter& out, const StatusView& view) {
  out.key("memory").begin_object();
  if (view.model) {
    const ipc::MemoryPlan& m = view.model->memory;
    field(out, "predicted_bytes",
          m.weights_bytes + m.lean_bytes + m.kv_pool_bytes + m.scratch_bytes + m.process_bytes + m.other_bytes);
    field(out, "weights_bytes", m.weights_bytes);
    field(out, "lean_weights_bytes", m.lean_bytes);
    field(out, "kv_pool_bytes", m.kv_pool_bytes);
    field(out, "scratch_bytes", m.scratch_bytes);
    field(out, "worker_bytes", m.process_bytes);
    field(out, "other_bytes", m.other_bytes);
    field(out, "budget_bytes", m.budget_bytes);
  }
  out.end_object();
}

void write_queue(JsonWriter& out, const StatusView& view) {
  out.key("queue").begin_object();
  field(out, "running", static_cast<int64_t>(view.running));
  field(out, "limit", view.max_queue);
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

void write_recent(JsonWriter& out, const StatusView& view) {
  out.key("recent").begin_array();
  for (const RecentRequest& r : view.recent) {
    out.begin_object();
    field(out, "id", r.id);
    field(out, "finished", format_utc(r.finished_us));
    field(out, "endpoint", r.endpoint);
    field(out, "priority", r.priority);
    field(out, "status", r.status);
    field(out, "http_status", r.http_status);
    field(out, "error_code", r.error_code);
    field(out, "degradation", r.degradation);
    field(out, "prompt_tokens", r.prompt_tokens);
    field(out, "completion_tokens", r.completion_tokens);
    field(out, "cached_tokens", r.cached_tokens);
    field(out, "dispatches", r.n_dispatches);
    out.key("queue_ms").number(r.queue_ms).key("ttft_ms").number(r.ttft_ms);
    out.key("total_ms").number(r.total_ms).end_object();
  }
  out.end_array().key("faults").begin_array();
  for (const Fault& f : view.faults) {
    out.begin_object();
    field(out, "at", format_utc(f.at_us));
    field(out, "what", f.what);
    field(out, "action", f.action);
    field(out, "count", f.n);
    out.end_object();
  }
  out.end_array();
}

// Three columns of numbers, oldest first; null where nothing was measured.
void write_history(JsonWriter& out, const StatusView& view, int64_t now_us) {
  auto column = [&](const char* name, double HistoryPoint::*value) {
    out.key(name).begin_array();
    for (const HistoryPoint& p : view.history) p.*value < 0 ? out.null() : out.number(p.*value);
    out.end_array();
  };
  out.key("history").begin_object();
  out.key("point_seconds").number(static_cast<double>(History::kPointUs) / 1e6);
  out.key("span_seconds").number(static_cast<double>(History::kPointUs) * History::kPoints / 1e6);
  out.key("age_seconds").begin_array();
  for (const HistoryPoint& p : view.history)
    out.integer((now_us - p.end_us + 500'000) / 1'000'000);
  out.end_array();
  column("ttft_seconds", &HistoryPoint::ttft_s);
  column("inter_token_seconds", &HistoryPoint::inter_token_s);
  column("tokens_per_second", &HistoryPoint::tokens_per_s);
  out.end_object();
}

// `value` only where there is one: an absent or broken sensor is never a zero.
void write_sensors(JsonWriter& out, const HostReadings& host) {
  auto sensor = [&](const char* name, const SensorReading& r) {
    bool has_value = r.state == SensorReading::State::kOk || r.state == SensorReading::State::kLate;
    out.key(name).begin_object();
    field(out, "state", sensor_state_name(r.state));
    out.key("value");
    has_value ? out.number(r.value) : out.null();
    field(out, "note", r.note);
    out.end_object();
  };
  out.key("sensors").begin_object();
  sensor("temperature_celsius", host.temperature_c);
  sensor("trip_celsius", host.trip_c);
  sensor("clock_hertz", host.clock_hz);
  sensor("max_clock_hertz", host.max_clock_hz);
  sensor("throttle_events", host.throttle_events);
  sensor("memory_pressure_ratio", host.memory_pressure);
  sensor("memory_available_bytes", host.memory_available_bytes);
  sensor("memory_total_bytes", host.memory_total_bytes);
  sensor("major_faults", host.major_faults);
  sensor("disk_free_bytes", host.disk_free_bytes);
  sensor("disk_total_bytes", host.disk_total_bytes);
  out.end_object();
}

void write_load(JsonWriter& out, const DegradationView& view) {
  out.key("load").begin_object();
  for (const auto& cause : view.causes) {
    out.key(cause.name).begin_object().key("value");
    cause.value ? out.number(*cause.value) : out.null();
    field(out, "note", cause.note);
    out.end_object();
  }
  out.end_object().key("ladder").begin_array();
  for (const auto& rung : view.rungs) {
    out.begin_object();
    field(out, "rung", rung.name);
    field(out, "causes", rung.causes);
    out.key("enter").number(rung.enter).key("leave").number(rung.leave);
    out.key("is_active").boolean(rung.is_active);
    field(out, "pinned", rung.pinned);
    field(out, "skipped", rung.skip_reason);
    out.end_object();
  }
  out.end_array();
}

void write_box(JsonWriter& out, const BoxFacts& box) {
  out.key("box").begin_object();
  field(out, "kernel", box.kernel);
  field(out, "distribution", box.distribution);
  field(out, "machine", box.machine);
  field(out, "cpu", box.cpu_model);
  field(out, "cores", box.n_cores);
  field(out, "supervisor_rss_bytes", box.supervisor_rss_bytes);
  out.end_object();
}

}  // namespace

const char* readiness_name(api::Readiness::State state) {
  constexpr const char* kNames[] = {"ready", "degraded", "warming", "dead", "draining"};
  return kNames[static_cast<int>(state)];
}

std::string status_json(const StatusView& view, const BoxFacts& box,
                        const RequestLogCounters& log, const Status& log_status,
                        int64_t now_us) {
  JsonWriter out;
  out.begin_object();
  field(out, "version", TANDEM_VERSION);
  field(out, "time", format_utc(utc_us()));
  out.key("uptime_seconds").number(static_cast<double>(now_us - view.started_us) / 1e6);
  out.key("readiness").begin_object();
  field(out, "state", readiness_name(view.readiness.state));
  field(out, "cause", view.readiness.cause);
  field(out, "remedy", view.readiness.remedy);
  out.end_object();
  write_model(out, view);
  write_workers(out, view, box);
  write_placement(out, view);
  write_queue(out, view);
  write_requests(out, view);
  write_kv(out, view);
  write_memory(out, view);
  write_recent(out, view);
  write_history(out, view, now_us);
  write_sensors(out, view.host);
  if (view.has_requests) write_load(out, view.degradation);
  write_box(out, box);
  out.key("request_log").begin_object();
  field(out, "rows_written", static_cast<int64_t>(log.rows_written));
  field(out, "rows_dropped", static_cast<int64_t>(log.rows_dropped));
  field(out, "bytes_written", static_cast<int64_t>(log.bytes_written));
  out.key("file_bytes");
  box.log_file_bytes < 0 ? out.null() : out.integer(box.log_file_bytes);
  field(out, "budget_bytes", view.log_budget_bytes);
  field(out, "problem", log_status.ok() ? "" : log_status.message());
  out.end_object().end_object();
  return out.take();
}

}  // namespace tandem
