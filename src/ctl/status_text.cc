#include "ctl/status_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace tandem::ctl {

namespace {

using Json = nlohmann::json;

const Json* find(const Json& root, std::string_view path) {
  const Json* at = &root;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    const auto it = at->is_object() ? at->find(path.substr(0, dot)) : at->end();
    if (!at->is_object() || it == at->end()) return nullptr;
    at = &*it;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

std::optional<double> number(const Json& root, std::string_view path) {
  const Json* at = find(root, path);
  return at != nullptr && at->is_number() ? std::optional(at->get<double>()) : std::nullopt;
}

// Control characters of a foreign server must not reach the terminal.
std::string text(const Json& root, std::string_view path) {
  const Json* at = find(root, path);
  if (at == nullptr || !at->is_string()) return "-";
  std::string value = at->get<std::string>();
  for (char& c : value)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return value;
}

std::string count(const Json& root, std::string_view path) {
  const auto n = number(root, path);
  return n ? fmt::format("{:.0f}", *n) : "-";
}

std::string megabytes(const Json& root, std::string_view path) {
  const auto n = number(root, path);
  return n ? fmt::format("{:.0f} MB", *n / 1e6) : "-";
}

const Json& list(const Json& root, std::string_view path) {
  static const Json kNone = Json::array();
  const Json* at = find(root, path);
  return at != nullptr && at->is_array() ? *at : kNone;
}

// The newest value that is one.
std::string latest(const Json& root, const char* column, double factor, const char* unit) {
  const Json& values = list(root, std::string("history.") + column);
  for (auto it = values.rbegin(); it != values.rend(); ++it)
    if (it->is_number()) return fmt::format("{:.3g} {}", it->get<double>() * factor, unit);
  return "-";
}

std::string sensor(const Json& root, const std::string& name, double factor, const char* unit) {
  const std::string path = "sensors." + name, state = text(root, path + ".state");
  const auto value = number(root, path + ".value");
  if (!value) return state == "broken" ? "broken sensor: " + text(root, path + ".note") : "no sensor";
  return fmt::format("{:.4g} {}{}", *value * factor, unit, state == "late" ? " (late)" : "");
}

std::string head(const Json& d) {
  std::string out = fmt::format("{}: {}\n", text(d, "readiness.state"),
                                text(d, "readiness.cause").empty() ? "no trouble" : text(d, "readiness.cause"));
  if (const std::string remedy = text(d, "readiness.remedy"); !remedy.empty() && remedy != "-") out += "  what helps: " + remedy + "\n";
  out += fmt::format("version {}   up {:.0f} s   model {} ({} {})\n", text(d, "version"), number(d, "uptime_seconds").value_or(0),
                     text(d, "model.name"), text(d, "model.architecture"), text(d, "model.quantization"));
  return out + fmt::format("sha256  {}\n", text(d, "model.sha256").empty() ? "being computed" : text(d, "model.sha256"));
}

std::string work(const Json& d) {
  const auto used = number(d, "kv.pages_used"), free = number(d, "kv.pages_free");
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
std::string split(const Json& d, const Json& w) {
  const auto all = number(d, "model.layers"), on_device = number(w, "device_layers");
  return all && on_device && *on_device > 0 && *on_device < *all ? fmt::format(", {:.0f} of {:.0f} layers on the device", *on_device, *all) : "";
}

std::string workers(const Json& d) {
  std::string out;
  for (const Json& w : list(d, "workers"))
    out += fmt::format("worker  {} {}   pid {}   batch {}   memory {}   restarts {}   {} {}{}\n", text(w, "role"), text(w, "state"),
                       count(w, "pid"), count(w, "batch"), megabytes(w, "rss_bytes"), count(w, "restarts"), text(w, "device"),
                       text(w, "isa"), split(d, w));
  return out;
}

std::string machine(const Json& d) {
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

std::string load(const Json& d) {
  std::string out = "load   ";
  for (const char* cause : {"queue", "compute", "kv", "memory", "heat"}) {
    const auto value = number(d, std::string("load.") + cause + ".value");
    out += fmt::format(" {} {}  ", cause, value ? fmt::format("{:.2f}", *value) : "-");
  }
  std::string rungs;
  for (const Json& r : list(d, "ladder")) {
    const Json* active = find(r, "is_active");
    const std::string pinned = text(r, "pinned");
    if (active != nullptr && active->is_boolean() && active->get<bool>())
      rungs += " " + text(r, "rung") + (pinned == "on" ? " (pinned)" : "");
    else if (pinned == "off")
      rungs += " " + text(r, "rung") + " (pinned off)";
  }
  return out + "\nladder  " + (rungs.empty() ? "no rung is active" : "active:" + rungs) + "\n";
}

std::string faults(const Json& d) {
  std::string out;
  for (const Json& f : list(d, "faults"))
    out += fmt::format("fault   {}  {} (x{}); done: {}\n", text(f, "at"), text(f, "what"), count(f, "count"), text(f, "action"));
  return out;
}

}  // namespace

Result<std::string> status_text(const std::string& json) {
  const Json d = Json::parse(json, nullptr, false);
  if (!d.is_object() || find(d, "readiness.state") == nullptr)
    return data_loss("the answer is no status of a Tandem server; is the address right?");
  return head(d) + work(d) + load(d) + workers(d) + machine(d) + faults(d);
}

}  // namespace tandem::ctl
