#include "ctl/status_text.h"

#include <fmt/format.h>

#include <string_view>

#include "ctl/json_read.h"

namespace tandem::ctl {

namespace {

std::string text(const JsonPart& root, std::string_view path) { return root.text(path).value_or("-"); }

std::string count(const JsonPart& root, std::string_view path) {
  const auto n = root.number(path);
  return n ? fmt::format("{:.0f}", *n) : "-";
}

std::string megabytes(const JsonPart& root, std::string_view path) {
  const auto n = root.number(path);
  return n ? fmt::format("{:.0f} MB", *n / 1e6) : "-";
}

// The newest value that is one.
std::string latest(const JsonPart& root, const char* column, double factor, const char* unit) {
  const auto values = root.list(std::string("history.") + column);
  for (auto it = values.rbegin(); it != values.rend(); ++it)
    if (const auto value = it->number("")) return fmt::format("{:.3g} {}", *value * factor, unit);
  return "-";
}

std::string sensor(const JsonPart& root, const std::string& name, double factor, const char* unit) {
  const std::string path = "sensors." + name, state = text(root, path + ".state");
  const auto value = root.number(path + ".value");
  if (!value) return state == "broken" ? "broken sensor: " + text(root, path + ".note") : "no sensor";
  return fmt::format("{:.4g} {}{}", *value * factor, unit, state == "late" ? " (late)" : "");
}

std::string head(const JsonPart& d) {
  std::string out = fmt::format("{}: {}\n", text(d, "readiness.state"),
                                text(d, "readiness.cause").empty() ? "no trouble" : text(d, "readiness.cause"));
  if (const std::string remedy = text(d, "readiness.remedy"); !remedy.empty() && remedy != "-") out += "  what helps: " + remedy + "\n";
  out += fmt::format("version {}   up {:.0f} s   model {} ({} {})\n", text(d, "version"), d.number("uptime_seconds").value_or(0),
                     text(d, "model.name"), text(d, "model.architecture"), text(d, "model.quantization"));
  return out + fmt::format("sha256  {}\n", text(d, "model.sha256").empty() ? "being computed" : text(d, "model.sha256"));
}

std::string work(const JsonPart& d) {
  const auto used = d.number("kv.pages_used"), free = d.number("kv.pages_free");
  const double total = used.value_or(0) + free.value_or(0);
  std::string out = fmt::format("queue   running {}   waiting high {} normal {} low {}   of {}\n", count(d, "queue.running"),
                                count(d, "queue.waiting.high"), count(d, "queue.waiting.normal"), count(d, "queue.waiting.low"),
                                count(d, "queue.limit"));
  out += fmt::format("kv      {} of {:.0f} pages used{}   shared {}   preemptions {}\n", count(d, "kv.pages_used"), total,
                     total > 0 ? fmt::format(" ({:.1f} %)", 100 * *used / total) : "", count(d, "kv.pages_shared"),
                     count(d, "kv.preemptions"));
  return out + fmt::format("lately  first token {}   between tokens {}   {}\n", latest(d, "ttft_seconds", 1e3, "ms"),
                           latest(d, "inter_token_seconds", 1e3, "ms"), latest(d, "tokens_per_second", 1, "tokens/s"));
}

// Of a worker whose device holds not all layers.
std::string split(const JsonPart& d, const JsonPart& w) {
  const auto all = d.number("model.layers"), on_device = w.number("device_layers");
  return all && on_device && *on_device > 0 && *on_device < *all ? fmt::format(", {:.0f} of {:.0f} layers on the device", *on_device, *all) : "";
}

std::string workers(const JsonPart& d) {
  std::string out;
  for (const JsonPart& w : d.list("workers"))
    out += fmt::format("worker  {} {}   pid {}   batch {}   memory {}   restarts {}   {} {}{}\n", text(w, "role"), text(w, "state"),
                       count(w, "pid"), count(w, "batch"), megabytes(w, "rss_bytes"), count(w, "restarts"), text(w, "device"),
                       text(w, "isa"), split(d, w));
  return out;
}

std::string machine(const JsonPart& d) {
  std::string out = fmt::format("heat    {}   clock {}   memory free {}   pressure {}\n", sensor(d, "temperature_celsius", 1, "°C"),
                                sensor(d, "clock_hertz", 1e-9, "GHz"), sensor(d, "memory_available_bytes", 1e-6, "MB"),
                                sensor(d, "memory_pressure_ratio", 100, "%"));
  out += fmt::format("disk    free {}   log {} of {}   rows dropped {}\n", megabytes(d, "sensors.disk_free_bytes.value"),
                     megabytes(d, "request_log.file_bytes"), megabytes(d, "request_log.budget_bytes"),
                     count(d, "request_log.rows_dropped"));
  if (const std::string problem = text(d, "request_log.problem"); !problem.empty() && problem != "-")
    out += "  request log: " + problem + "\n";
  return out;
}

std::string load(const JsonPart& d) {
  std::string out = "load   ";
  for (const char* cause : {"queue", "compute", "kv", "memory", "heat"}) {
    const auto value = d.number(std::string("load.") + cause + ".value");
    out += fmt::format(" {} {}  ", cause, value ? fmt::format("{:.2f}", *value) : "-");
  }
  std::string rungs;
  for (const JsonPart& r : d.list("ladder")) {
    const std::string pinned = text(r, "pinned");
    if (r.flag("is_active").value_or(false))
      rungs += " " + text(r, "rung") + (pinned == "on" ? " (pinned)" : "");
    else if (pinned == "off")
      rungs += " " + text(r, "rung") + " (pinned off)";
  }
  return out + "\nladder  " + (rungs.empty() ? "no rung is active" : "active:" + rungs) + "\n";
}

std::string faults(const JsonPart& d) {
  std::string out;
  for (const JsonPart& f : d.list("faults"))
    out += fmt::format("fault   {}  {} (x{}); done: {}\n", text(f, "at"), text(f, "what"), count(f, "count"), text(f, "action"));
  return out;
}

}  // namespace

Result<std::string> status_text(const std::string& json) {
  const JsonDocument d(json);
  if (!d.find("readiness.state").is_there())
    return data_loss("the answer is no status of a Tandem server; is the address right?");
  return head(d) + work(d) + load(d) + workers(d) + machine(d) + faults(d);
}

}  // namespace tandem::ctl
