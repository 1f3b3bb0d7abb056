// What each section of the status page says. Every text from outside passes escape_html; numbers that are not
// known are said to be so.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "api/status_page.h"

namespace tandem::api {
namespace {

constexpr const char* kUnknown = "not known";
constexpr double kNearTripC = 10;       // this near to the trip point the heat is shown as a warning
constexpr double kFullPool = 0.8;       // above it the batch shrinks (design.md 5)
constexpr double kLowDiskBytes = 1e9;

// Reads members by dotted path; whatever is missing or of another kind is nothing.
class Doc {
 public:
  explicit Doc(const JsonValue& root) : root_(root) {}
  const JsonValue* at(std::string_view path) const {
    const JsonValue* value = &root_;
    while (value != nullptr && !path.empty()) {
      size_t dot = std::min(path.find('.'), path.size());
      value = value->find(path.substr(0, dot));
      path.remove_prefix(std::min(dot + 1, path.size()));
    }
    return value;
  }
  std::optional<double> number(std::string_view path) const {
    const JsonValue* value = at(path);
    if (value == nullptr) return std::nullopt;
    if (value->as_integer() != nullptr) return static_cast<double>(*value->as_integer());
    return value->as_double() != nullptr ? std::optional(*value->as_double()) : std::nullopt;
  }
  double number_or_0(std::string_view path) const { return number(path).value_or(0); }
  std::string text(std::string_view path) const {  // escaped
    const JsonValue* value = at(path);
    return value != nullptr && value->as_string() != nullptr ? escape_html(*value->as_string()) : "";
  }
  const JsonArray& list(std::string_view path) const {
    static const JsonArray kNone;
    const JsonValue* value = at(path);
    return value != nullptr && value->as_array() != nullptr ? *value->as_array() : kNone;
  }

 private:
  const JsonValue& root_;
};

std::string count(std::optional<double> n) {
  return n ? fmt::format("{}", static_cast<int64_t>(*n)) : kUnknown;
}
std::string bytes(std::optional<double> n) {
  if (!n) return kUnknown;
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  double value = *n;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  return fmt::format("{:.{}f} {}", value, unit == 0 || value >= 100 ? 0 : 1, kUnits[unit]);
}
std::string seconds(double s) {
  if (s < 0.0995) return fmt::format("{:.3g} ms", s * 1000);
  return s < 120 ? fmt::format("{:.3g} s", s) : fmt::format("{:.0f} min", s / 60);
}
std::string duration(double s) {
  int64_t minutes = static_cast<int64_t>(s) / 60;
  if (minutes < 1) return fmt::format("{:.0f} s", s);
  if (minutes < 120) return fmt::format("{} min", minutes);
  if (minutes < 2880) return fmt::format("{} h {} min", minutes / 60, minutes % 60);
  return fmt::format("{} days {} h", minutes / 1440, minutes / 60 % 24);
}
std::string plural(double n, const char* word) { return fmt::format("{:.0f} {}{}", n, word, n == 1 ? "" : "s"); }
std::string row(std::string_view name, const std::string& value) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>", name, value);
}
std::string or_unknown(const std::string& text) { return text.empty() ? kUnknown : text; }
// "12:34:56" of "2026-11-29T12:34:56.789Z".
std::string clock_time(const std::string& utc) {
  return fmt::format("<time datetime=\"{}\">{}</time>", utc, utc.size() > 19 ? utc.substr(11, 8) : utc);
}

// --- the sections ---

double waiting(const Doc& d) {
  return d.number_or_0("queue.waiting.high") + d.number_or_0("queue.waiting.normal") + d.number_or_0("queue.waiting.low");
}

std::string state(const Doc& d) {
  std::string name = d.text("readiness.state"), cause = d.text("readiness.cause"), remedy = d.text("readiness.remedy");
  if (cause.empty()) {
    double running = d.number_or_0("queue.running");
    cause = running + waiting(d) == 0 ? "idle, waiting for requests"
                                      : plural(running, "request") + " running, " + fmt::format("{:.0f} waiting", waiting(d));
  }
  std::string mark = name == "ready" ? "●" : name == "dead" ? "■" : "▲";
  std::string out = fmt::format("<div class=\"state {}\"><p><strong>{} {}</strong>: {}.</p>", name, mark, name, cause);
  if (!remedy.empty()) out += "<p>What helps: " + remedy + ".</p>";
  return out + "</div>";
}

struct Plot {
  const char* title;
  const char* column;
  std::string (*show)(double);
};

// One point each 5 s, the newest at the right edge; where nothing was measured the line has a gap.
std::string plot(const Doc& d, const Plot& p) {
  const JsonArray& values = d.list(std::string("history.") + p.column);
  const JsonArray& ages = d.list("history.age_seconds");
  double span = std::max(1.0, d.number("history.span_seconds").value_or(900));
  std::optional<double> highest, latest;
  auto value_at = [&](size_t i) { return Doc(values[i]).number(""); };
  size_t n = std::min(values.size(), ages.size());
  for (size_t i = 0; i < n; ++i) {
    if (auto v = value_at(i)) highest = std::max(highest.value_or(*v), *v), latest = v;
  }
  std::string lines, line;
  auto end_line = [&] {
    if (!line.empty()) lines += "<polyline points=\"" + line + "\"/>";
    line.clear();
  };
  for (size_t i = 0; i < n; ++i) {
    auto v = value_at(i);
    if (!v) {
      end_line();
      continue;
    }
    double x = 300 * (1 - Doc(ages[i]).number_or_0("") / span);
    double y = 38 - 36 * (*highest > 0 ? *v / *highest : 0);
    if (line.empty()) line = fmt::format("{:.1f},{:.1f}", x - 1, y);  // so that a single point is seen
    line += fmt::format(" {:.1f},{:.1f}", x, y);
  }
  end_line();
  std::string said = latest ? "latest " + p.show(*latest) + ", highest " + p.show(*highest) : "nothing measured yet";
  return fmt::format(
      "<div><p>{0}: <b>{1}</b></p><svg class=\"plot\" viewBox=\"0 0 300 40\" preserveAspectRatio=\"none\" role=\"img\" "
      "aria-label=\"{0}, last 15 minutes: {1}\">{2}</svg></div>",
      p.title, said, lines);
}

std::string plots(const Doc& d) {
  auto rate = [](double v) { return fmt::format("{:.{}f}/s", v, v < 10 ? 1 : 0); };
  return plot(d, {"Time to first token", "ttft_seconds", seconds}) +
         plot(d, {"Between tokens", "inter_token_seconds", seconds}) + plot(d, {"Tokens", "tokens_per_second", rate});
}

std::string kv(const Doc& d) {
  auto used = d.number("kv.pages_used"), free = d.number("kv.pages_free");
  double shared = d.number_or_0("kv.pages_shared"), total = used.value_or(0) + free.value_or(0);
  if (total <= 0) return "<p>No worker holds a pool now.</p>";
  double share = *used / total, own = std::max(0.0, *used - shared);
  std::string out = fmt::format(
      "<svg class=\"bar\" viewBox=\"0 0 {0:.0f} 10\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{1:.0f} of {0:.0f} "
      "pages used, {2:.0f} of them shared\"><rect class=\"used\" width=\"{3:.0f}\" height=\"10\"/><rect class=\"shared\" "
      "x=\"{3:.0f}\" width=\"{4:.0f}\" height=\"10\"/></svg>",
      total, *used, shared, own, *used - own);
  out += fmt::format(
      "<p class=\"legend\"><span class=\"key used\"></span>used {:.0f} <span class=\"key shared\"></span>shared {:.0f} "
      "<span class=\"key\"></span>free {:.0f} pages</p><dl>",
      own, *used - own, *free);
  out += row("Usage", fmt::format("<span class=\"{}\">{:.1f} %</span>", share > kFullPool ? "warn" : "good", share * 100));
  out += row("Size", bytes(d.number("kv.pool_bytes")) + ", " + count(d.number("kv.pool_tokens")) + " tokens for one sequence");
  out += row("Per token", bytes(d.number("kv.bytes_per_token")));
  if (d.number_or_0("kv.swap_pool_bytes") > 0) out += row("Swapped out", count(d.number("kv.pages_swapped")) + " pages");
  if (d.number("kv.batch_limit")) out += row("Batch limit", count(d.number("kv.batch_limit")) + " sequences now");
  return out + row("Preemptions", count(d.number("kv.preemptions"))) + "</dl>";
}

// "queue compute heat" -> "queue, compute or heat".
std::string either_of(std::string words) {
  const size_t last = words.rfind(' ');
  if (last == std::string::npos) return words;
  const std::string tail = words.substr(last + 1);
  words.resize(last);
  for (size_t at = 0; (at = words.find(' ', at)) != std::string::npos; at += 2) words.insert(at, ",");
  return words + " or " + tail;
}

// Load by cause as bars, and the ladder with the rungs that are active lit.
std::string load(const Doc& d) {
  std::string out = "<dl>";
  for (const char* cause : {"queue", "compute", "kv", "memory", "heat"}) {
    std::string path = std::string("load.") + cause, note = d.text(path + ".note");
    auto value = d.number(path + ".value");
    if (!value) {
      out += row(cause, "<span class=\"soft\">not known" + (note.empty() ? "" : ": " + note) + "</span>");
      continue;
    }
    out += row(cause, fmt::format("<svg class=\"bar\" viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" role=\"img\" "
                                  "aria-label=\"{0:.0f} %\"><rect class=\"used\" width=\"{0:.0f}\" height=\"10\"/></svg>",
                                  std::clamp(*value, 0.0, 1.0) * 100));
  }
  out += "</dl><ol class=\"ladder\">";
  for (const JsonValue& value : d.list("ladder")) {
    Doc r(value);
    const JsonValue* active = r.at("is_active");
    bool is_active = active != nullptr && active->as_bool() != nullptr && *active->as_bool();
    std::string pinned = r.text("pinned"), skipped = r.text("skipped");
    std::string tail = !skipped.empty() ? "skipped: " + skipped
                                        : fmt::format("at {:.2f} of {}{}", r.number_or_0("enter"), either_of(r.text("causes")),
                                                      pinned.empty() ? "" : ", pinned " + pinned);
    out += fmt::format("<li{}>{} <b>{}</b> <span class=\"soft\">{}</span></li>", is_active ? " class=\"lit\"" : "",
                       is_active ? "▲ active:" : "off:", r.text("rung"), tail);
  }
  return out + (d.list("ladder").empty() ? "</ol><p>The ladder is off.</p>" : "</ol>");
}

std::string queue(const Doc& d) {
  return "<dl>" + row("Running", count(d.number("queue.running"))) + row("Waiting, high", count(d.number("queue.waiting.high"))) +
         row("Waiting, normal", count(d.number("queue.waiting.normal"))) +
         row("Waiting, low", count(d.number("queue.waiting.low"))) +
         row("Places", fmt::format("{:.0f} of {} taken", waiting(d), count(d.number("queue.limit")))) + "</dl>";
}

std::string workers(const Doc& d) {
  std::string out =
      "<table><thead><tr><th>Role</th><th>State</th><th class=\"n\">Batch</th><th class=\"n\">Memory</th>"
      "<th class=\"n\">Restarts</th><th>Device</th></tr></thead><tbody>";
  for (const JsonValue& value : d.list("workers")) {
    Doc w(value);
    std::string state_name = w.text("state"), isa = w.text("isa");
    std::string place = w.text("device") + (isa.empty() ? "" : " " + isa);
    const auto n_layers = d.number("model.layers"), n_device = w.number("device_layers");
    if (n_layers && n_device && *n_device > 0 && *n_device < *n_layers)
      place += fmt::format(", {:.0f} of {:.0f} layers on the device", *n_device, *n_layers);
    out += fmt::format(
        "<tr><td>{}</td><td class=\"{}\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td>{}</td></tr>",
        w.text("role"), state_name == "ready" ? "good" : "warn", state_name, count(w.number("batch")),
        w.number_or_0("rss_bytes") > 0 ? bytes(w.number("rss_bytes")) : kUnknown, count(w.number("restarts")),
        or_unknown(place));
  }
  out += "</tbody></table>";
  for (const JsonValue& value : d.list("workers")) {
    std::string last = Doc(value).text("last_end");
    if (!last.empty()) out += "<p class=\"soft\">Last end: " + last + "</p>";
  }
  return out;
}

// "absent", "broken: note" or the value; a late one with a mark.
template <typename Show>
std::string sensor(const Doc& d, const std::string& name, Show show) {
  std::string path = "sensors." + name, reading = d.text(path + ".state"), note = d.text(path + ".note");
  auto value = d.number(path + ".value");
  if (reading == "broken") return "<span class=\"bad\">broken sensor</span>: " + note;
  if (!value) return "no sensor";
  return show(*value) + (reading == "late" ? " <span class=\"warn\">(late)</span>" : "");
}

std::string machine(const Doc& d) {
  auto trip = d.number("sensors.trip_celsius.value");
  auto heat = [&](double c) {
    std::string note = d.text("sensors.temperature_celsius.note");
    bool is_near = trip && c > *trip - kNearTripC;
    return fmt::format("<span class=\"{}\">{:.0f} °C</span>{} ({})", is_near ? "warn" : "good", c,
                       trip ? fmt::format(", throttles at {:.0f} °C", *trip) : "", note);
  };
  auto max_clock = d.number("sensors.max_clock_hertz.value");
  auto clock = [&](double hz) {
    return fmt::format("{:.2f} GHz{}", hz / 1e9, max_clock ? fmt::format(" of {:.2f} GHz", *max_clock / 1e9) : "");
  };
  auto percent = [](double v) { return fmt::format("{:.1f} % of the time some task waits", v * 100); };
  auto memory = [&](double v) { return bytes(v) + " of " + bytes(d.number("sensors.memory_total_bytes.value")) + " available"; };
  auto plain = [](double v) { return fmt::format("{:.0f}", v); };
  return "<dl>" + row("Processor", or_unknown(d.text("box.cpu")) + ", " + count(d.number("box.cores")) + " cores") +
         row("Heat", sensor(d, "temperature_celsius", heat)) + row("Clock", sensor(d, "clock_hertz", clock)) +
         row("Throttled", sensor(d, "throttle_events", plain)) + row("Memory", sensor(d, "memory_available_bytes", memory)) +
         row("Pressure", sensor(d, "memory_pressure_ratio", percent)) + "</dl>";
}

std::string recent(const Doc& d) {
  const JsonArray& rows = d.list("recent");
  if (rows.empty()) return "<p>None yet.</p>";
  std::string out =
      "<table><thead><tr><th>Ended (UTC)</th><th>Outcome</th><th class=\"n\">Tokens</th><th class=\"n\">First</th>"
      "<th class=\"n\">Total</th><th class=\"wide\">Kind</th><th class=\"wide\">Priority</th><th class=\"wide\">Degraded</th>"
      "<th class=\"wide\">Request</th></tr></thead><tbody>";
  for (const JsonValue& value : rows) {
    Doc r(value);
    std::string outcome = r.text("status"), code = r.text("error_code");
    bool is_good = outcome == "stop" || outcome == "length";
    double ttft = r.number_or_0("ttft_ms");
    out += fmt::format(
        "<tr><td>{}</td><td class=\"{}\">{}{}</td><td class=\"n\">{}+{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>"
        "<td class=\"wide\">{}</td><td class=\"wide\">{}</td><td class=\"wide\">{}</td><td class=\"wide mono\">{}</td></tr>",
        clock_time(r.text("finished")), is_good ? "good" : outcome == "failed" ? "bad" : "warn", outcome,
        code.empty() ? "" : " (" + code + ")", count(r.number("prompt_tokens")), count(r.number("completion_tokens")),
        ttft > 0 ? seconds(ttft / 1000) : "–", seconds(r.number_or_0("total_ms") / 1000), r.text("endpoint"), r.text("priority"),
        r.text("degradation").empty() ? "no" : r.text("degradation"), r.text("id"));
  }
  return out + "</tbody></table>";
}

std::string faults(const Doc& d) {
  const JsonArray& list = d.list("faults");
  if (list.empty()) return "<p>None since the start.</p>";
  std::string out = "<ul>";
  for (const JsonValue& value : list) {
    Doc f(value);
    double n = f.number("count").value_or(1);
    out += fmt::format("<li>{}: {}{}. <span class=\"soft\">Done: {}.</span></li>", clock_time(f.text("at")), f.text("what"),
                       n > 1 ? fmt::format(" ({:.0f} times)", n) : "", f.text("action"));
  }
  return out + "</ul>";
}

std::string disk(const Doc& d) {
  auto free = d.number("sensors.disk_free_bytes.value");
  auto dropped = d.number("request_log.rows_dropped");
  std::string problem = d.text("request_log.problem");
  std::string out = "<dl>" +
                    row("Free", fmt::format("<span class=\"{}\">{}</span> of {}", free.value_or(kLowDiskBytes) < kLowDiskBytes ? "warn" : "good",
                                            bytes(free), bytes(d.number("sensors.disk_total_bytes.value")))) +
                    row("Log size", bytes(d.number("request_log.file_bytes")) + " of a budget of " +
                                        bytes(d.number("request_log.budget_bytes"))) +
                    row("Rows", count(d.number("request_log.rows_written")) + " written, " +
                                    fmt::format("<span class=\"{}\">{} dropped</span>", dropped.value_or(0) > 0 ? "bad" : "good",
                                                count(dropped))) +
                    row("Written", bytes(d.number("request_log.bytes_written")) + " since the start");
  if (!problem.empty()) out += row("Problem", "<span class=\"bad\">" + problem + "</span>");
  return out + "</dl>";
}

// Size, speed and perplexity of both sets of weights, where there are two.
std::string weight_sets(const Doc& d) {
  if (d.number_or_0("model.weight_sets.lean_bytes") <= 0) return "";
  auto set = [&](const std::string& name) {
    double ms = d.number_or_0("model.weight_sets." + name + "_step_ms");
    double perplexity = d.number_or_0("model.weight_sets." + name + "_perplexity");
    return bytes(d.number("model.weight_sets." + name + "_bytes")) + (ms > 0 ? fmt::format(", {:.1f} tokens/s alone", 1000 / ms) : "") +
           (perplexity > 0 ? fmt::format(", perplexity {:.1f} on a built-in text", perplexity) : "");
  };
  const std::string file = d.text("model.weight_sets.lean_file");
  if (file.empty()) return row("8-bit set", set("full")) + row("4-bit set", set("lean"));
  return row("Full set", set("full")) + row("Lean set", set("lean") + " (" + file + ")");
}

std::string about(const Doc& d) {
  std::string hash = d.text("model.sha256"), context = count(d.number("model.context_tokens"));
  return "<dl>" + row("Tandem", or_unknown(d.text("version")) + ", up " + duration(d.number_or_0("uptime_seconds"))) +
         row("Model", or_unknown(d.text("model.name"))) +
         row("Kind", or_unknown(d.text("model.architecture")) + " " + d.text("model.quantization") + ", context " + context) +
         row("Weights", bytes(d.number("model.weight_bytes"))) + weight_sets(d) +
         row("sha256", "<span class=\"mono\">" + (hash.empty() ? std::string("being computed") : hash) + "</span>") +
         row("System", or_unknown(d.text("box.distribution")) + ", " + d.text("box.kernel") + " " + d.text("box.machine")) +
         row("Supervisor", bytes(d.number("box.supervisor_rss_bytes")) + " of memory") + "</dl>";
}

}  // namespace

PageSections render_sections(const JsonValue& status) {
  Doc d(status);
  const JsonValue* name = d.at("readiness.state");
  std::string title = name != nullptr && name->as_string() != nullptr ? *name->as_string() : kUnknown;
  return {{"title", title},       {"state", state(d)},   {"plots", plots(d)},   {"kv", kv(d)},
          {"load", load(d)}, {"queue", queue(d)},    {"workers", workers(d)}, {"machine", machine(d)}, {"recent", recent(d)},
          {"faults", faults(d)},  {"disk", disk(d)},     {"about", about(d)}};
}

}  // namespace tandem::api
