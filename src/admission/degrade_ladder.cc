#include "admission/degrade_ladder.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/toml_rows.h"

namespace tandem {
namespace {

constexpr const char* kRungNames[kNumRungs] = {"logprobs", "weights-4bit", "batch", "tokens", "shed"};
constexpr double kLeastDwellS = 1, kMostDwellS = 3600;

std::string number_text(double v) {
  std::string text = std::to_string(v);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Reads one row against a range; every error starts alike.
struct Row {
  const TomlRow& row;
  const std::string& file;
  std::string at() const { return file + ":" + std::to_string(row.line) + ": " + row.table + "." + row.key; }
  Result<double> number(double min, double max) const {
    const double* v = std::get_if<double>(&row.value);
    std::string range = " must be a number from " + number_text(min) + " to " + number_text(max);
    if (v == nullptr) return invalid_argument(at() + range);
    if (!(*v >= min && *v <= max)) return invalid_argument(at() + range + ", got " + number_text(*v));
    return *v;
  }
  Status unknown() const { return invalid_argument(at() + " is not known here; see degrade_ladder.toml as shipped"); }
};

// "[load.NAME] zero, one" -> where the two numbers go.
CauseScale* scale_of(const std::string& table, LoadScales* scales) {
  const std::map<std::string, CauseScale LoadScales::*> kScales = {{"load.queue", &LoadScales::queue},
                                                                   {"load.compute", &LoadScales::compute},
                                                                   {"load.kv", &LoadScales::kv},
                                                                   {"load.memory_pressure", &LoadScales::memory_pressure},
                                                                   {"load.memory_used", &LoadScales::memory_used},
                                                                   {"load.major_faults", &LoadScales::major_faults},
                                                                   {"load.heat_room", &LoadScales::heat_room},
                                                                   {"load.clock", &LoadScales::clock}};
  auto it = kScales.find(table);
  return it == kScales.end() ? nullptr : &(scales->*(it->second));
}

Status read_scale_row(const Row& r, LoadScales* scales) {
  if (r.row.table == "load" && r.row.key == "smoothing_s") {
    CHECK_ASSIGN(scales->smoothing_s, r.number(0.1, 60));
    return ok_status();
  }
  if (r.row.table == "load" && r.row.key == "throttled") {
    CHECK_ASSIGN(scales->throttled, r.number(0, 1));
    return ok_status();
  }
  CauseScale* scale = scale_of(r.row.table, scales);
  if (scale == nullptr || (r.row.key != "zero" && r.row.key != "one")) return r.unknown();
  CHECK_ASSIGN((r.row.key == "zero" ? scale->zero : scale->one), r.number(0, 1e6));
  return ok_status();
}

Status read_causes(const Row& r, Rung* rung) {
  const auto* names = std::get_if<std::vector<std::string>>(&r.row.value);
  if (names == nullptr || names->empty())
    return invalid_argument(r.at() + " must be a list of queue, compute, kv, memory, heat");
  for (const std::string& name : *names) {
    auto cause = parse_load_cause(name);
    if (!cause) return invalid_argument(r.at() + " must be a list of queue, compute, kv, memory, heat, got \"" + name + "\"");
    rung->causes.push_back(*cause);
  }
  return ok_status();
}

Status read_rung_row(const Row& r, Rung* rung) {
  const std::string& key = r.row.key;
  auto micros = [&](double min, double max, int64_t* out) -> Status {
    CHECK_ASSIGN(const double seconds, r.number(min, max));
    *out = std::llround(seconds * 1e6);
    return ok_status();
  };
  if (key == "name") {
    const std::string* name = std::get_if<std::string>(&r.row.value);
    auto kind = name != nullptr ? parse_rung(*name) : std::nullopt;
    if (!kind) return invalid_argument(r.at() + " must be one of logprobs, weights-4bit, batch, tokens, shed");
    rung->kind = *kind;
    return ok_status();
  }
  if (key == "causes") return read_causes(r, rung);
  if (key == "enter" || key == "leave") {
    CHECK_ASSIGN((key == "enter" ? rung->enter : rung->leave), r.number(0, 1));
    return ok_status();
  }
  if (key == "hold_s") return micros(0, 600, &rung->hold_us);
  if (key == "leave_hold_s") return micros(0, 600, &rung->leave_hold_us);
  if (key == "dwell_s") return micros(kLeastDwellS, kMostDwellS, &rung->dwell_us);
  if (key == "then_normal_s") return micros(0, 600, &rung->then_normal_us);
  if (key == "max_tokens") {
    CHECK_ASSIGN(const double n, r.number(1, 1e6));
    rung->max_tokens = static_cast<int64_t>(n);
    return ok_status();
  }
  return r.unknown();
}

Status check_rung(const Rung& rung, const std::string& at) {
  auto must = [&](const std::string& rule) { return invalid_argument(at + rule); };
  if (rung.causes.empty()) return must("causes is missing");
  if (rung.leave >= rung.enter)
    return must("leave must be < enter, got leave " + number_text(rung.leave) + " and enter " + number_text(rung.enter));
  bool has_memory = std::find(rung.causes.begin(), rung.causes.end(), LoadCause::kMemory) != rung.causes.end();
  if (rung.kind == RungKind::kWeights4bit && has_memory)
    return must("memory must not be among its causes: a second weight set needs more of it");
  if ((rung.kind == RungKind::kTokens) != (rung.max_tokens > 0))
    return must(rung.kind == RungKind::kTokens ? "max_tokens is missing" : "max_tokens belongs to the rung tokens only");
  if (rung.kind != RungKind::kShed && rung.then_normal_us > 0) return must("then_normal_s belongs to the rung shed only");
  return ok_status();
}

Status check_scales(const LoadScales& s, const std::string& file) {
  for (const CauseScale& scale :
       {s.queue, s.compute, s.kv, s.memory_pressure, s.memory_used, s.major_faults, s.heat_room, s.clock})
    if (scale.zero == scale.one)
      return invalid_argument(file + ": zero and one of a load scale must differ, got " + number_text(scale.zero) + " for both");
  return ok_status();
}

}  // namespace

const char* rung_name(RungKind kind) { return kRungNames[static_cast<int>(kind)]; }

std::optional<RungKind> parse_rung(const std::string& name) {
  for (int i = 0; i < kNumRungs; ++i)
    if (name == kRungNames[i]) return static_cast<RungKind>(i);
  return std::nullopt;
}

Result<Ladder> parse_ladder(const std::string& text, const std::string& file) {
  CHECK_ASSIGN(const std::vector<TomlRow> rows, read_toml_rows(text, file));
  Ladder ladder;
  std::vector<int> lines;                 // of each rung's first row
  std::vector<bool> has_name;
  for (const TomlRow& row : rows) {
    Row r{row, file};
    if (row.table != "rung") {
      CHECK_OK(read_scale_row(r, &ladder.scales));
      continue;
    }
    size_t i = static_cast<size_t>(row.index);
    if (i >= ladder.rungs.size()) ladder.rungs.resize(i + 1), lines.resize(i + 1, row.line), has_name.resize(i + 1);
    CHECK_OK(read_rung_row(r, &ladder.rungs[i]));
    if (row.key == "name") has_name[i] = true;
  }
  CHECK_OK(check_scales(ladder.scales, file));
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    const Rung& rung = ladder.rungs[i];
    const std::string at = file + ":" + std::to_string(lines[i]) + ": rung ";
    if (!has_name[i]) return invalid_argument(at + std::to_string(i + 1) + ": name is missing");
    for (size_t k = 0; k < i; ++k)
      if (ladder.rungs[k].kind == rung.kind) return invalid_argument(at + rung_name(rung.kind) + " is given twice");
    CHECK_OK(check_rung(rung, at + rung_name(rung.kind) + ": "));
  }
  return ladder;
}

}  // namespace tandem
