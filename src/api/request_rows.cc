#include "api/request_rows.h"

#include "api/json_writer.h"
#include "base/clock.h"

namespace tandem::api {
namespace {

void write_row(const ipc::RequestRecord& row, JsonWriter* out) {
  auto text = [&](const char* name, const std::string& value) { out->key(name).string(value); };
  auto count = [&](const char* name, int64_t value) { out->key(name).integer(value); };
  auto ms = [&](const char* name, double value) { out->key(name).number(value); };
  out->begin_object();
  text("id", row.id);
  text("received", format_utc(row.received_us));
  text("finished", format_utc(row.finished_us));
  text("client", row.client);
  text("endpoint", row.endpoint);
  text("model", row.model);
  text("priority", row.priority);
  count("prompt_tokens", row.prompt_tokens);
  count("completion_tokens", row.completion_tokens);
  count("cached_tokens", row.cached_tokens);
  ms("queue_ms", row.queue_ms);
  ms("prefill_ms", row.prefill_ms);
  ms("decode_ms", row.decode_ms);
  ms("total_ms", row.total_ms);
  ms("ttft_ms", row.ttft_ms);
  text("status", row.status);
  text("finish_reason", row.finish_reason);
  count("http_status", row.http_status);
  text("degradation", row.degradation);
  text("weights", row.weights);
  out->key("seed").unsigned_integer(row.seed);
  count("worker_generation", row.worker_generation);
  count("n_dispatches", row.n_dispatches);
  text("error", row.error);
  if (!row.prompt_text.empty()) text("prompt_text", row.prompt_text);
  if (!row.completion_text.empty()) text("completion_text", row.completion_text);
  out->end_object();
}

}  // namespace

std::string request_rows_json(const std::vector<ipc::RequestRecord>& rows) {
  JsonWriter out;
  out.begin_object().key("object").string("list").key("data").begin_array();
  for (const ipc::RequestRecord& row : rows) write_row(row, &out);
  out.end_array().end_object();
  return out.take();
}

}  // namespace tandem::api
