#include "supervisor/degradation.h"

#include <unistd.h>

#include <limits>
#include <utility>

#include "base/file_io.h"
#include "base/log.h"

namespace tandem {
namespace {

using State = SensorReading::State;

constexpr const char* kNoLeanSet = "there is no lean weight set that a worker has told of";
constexpr const char* kInstalled = "/etc/tandem/degrade_ladder.toml";
constexpr const char kEmbedded[] =
#include "degrade_ladder_toml.inc"
    ;

std::optional<double> known(const SensorReading& r) {
  return r.state == State::kOk ? std::optional(r.value) : std::nullopt;
}

std::string said(const SensorReading& r) {
  std::string state = sensor_state_name(r.state);
  return r.note.empty() ? state : state + ": " + r.note;
}

// By how much a counter rose since the look before; nothing at the first look or when it fell.
std::optional<double> rise(std::optional<double> now, std::optional<double>* before) {
  std::optional<double> last = std::exchange(*before, now);
  if (!now || !last || *now < *last) return std::nullopt;
  return *now - *last;
}

}  // namespace

Result<Ladder> load_ladder(const Config& config) {
  if (!config.degrade_enabled) return Ladder{};
  std::string path = config.degrade_ladder_file;
  if (path.empty() && access(kInstalled, F_OK) == 0) path = kInstalled;
  if (path.empty()) return parse_ladder(kEmbedded, "degrade_ladder.toml");
  const auto text = read_file(path);
  if (!text.ok()) return invalid_argument("degrade.ladder_file: " + text.status().message());
  return parse_ladder(*text, path);
}

Degradation::Degradation(Ladder ladder, Metrics* metrics)
    : metrics_(metrics), load_(ladder.scales), policy_(std::move(ladder)) {
  if (policy_.has(RungKind::kWeights4bit)) policy_.skip(RungKind::kWeights4bit, kNoLeanSet);
  export_metrics();
}

void Degradation::replace_ladder(Ladder ladder) {
  const bool had_lean_rung = policy_.has(RungKind::kWeights4bit);
  load_.set_scales(ladder.scales);
  policy_.replace_ladder(std::move(ladder));
  if (policy_.has(RungKind::kWeights4bit) && !had_lean_rung) policy_.skip(RungKind::kWeights4bit, kNoLeanSet);
  next_us_ = 0;
}

// The workers tell when they are ready; what they told last holds while they are not.
void Degradation::note_lean_set(const std::string& reason) {
  if (!policy_.has(RungKind::kWeights4bit) || reason == policy_.skip_reason(RungKind::kWeights4bit)) return;
  policy_.skip(RungKind::kWeights4bit, reason);
  if (reason.empty()) log_info("rung serves", {{"rung", "weights-4bit"}});
  else log_info("rung skipped", {{"rung", "weights-4bit"}, {"reason", reason}});
}

LoadSample Degradation::measure(const Inputs& in, int64_t now_us) {
  LoadSample s;
  s.queue_wait_s = in.queue_wait_s.value_or(0);
  if (n_gaps_ > 0)
    s.token_gap_s = gap_sum_s_ / static_cast<double>(n_gaps_);
  else if (!in.is_busy)
    s.token_gap_s = 0;
  gap_sum_s_ = 0, n_gaps_ = 0;
  s.kv_ratio = in.kv_ratio;
  const HostReadings& h = in.host;
  s.memory_pressure = known(h.memory_pressure);
  auto available = known(h.memory_available_bytes), total = known(h.memory_total_bytes);
  if (available && total && *total > 0) s.memory_used_ratio = 1 - *available / *total;
  double elapsed_s = last_us_ == 0 ? 1 : static_cast<double>(now_us - last_us_) / 1e6;
  if (auto n = rise(known(h.major_faults), &last_faults_)) s.major_faults_per_s = *n / elapsed_s;
  auto temperature = known(h.temperature_c), trip = known(h.trip_c), clock = known(h.clock_hz), most = known(h.max_clock_hz);
  if (temperature && trip) s.heat_room_c = *trip - *temperature;
  if (clock && most && *most > 0 && in.is_busy) s.clock_ratio = *clock / *most;
  if (auto n = rise(known(h.throttle_events), &last_throttles_)) s.is_throttled = *n > 0;
  last_us_ = now_us;

  auto note = [this](LoadCause cause, std::string text) { notes_[static_cast<size_t>(cause)] = std::move(text); };
  note(LoadCause::kCompute, "no token came in the last second");
  note(LoadCause::kKv, "no worker is ready");
  note(LoadCause::kMemory, said(h.memory_pressure));
  note(LoadCause::kHeat, temperature && !trip ? "no trip point is known" : said(h.temperature_c));
  return s;
}

void Degradation::turn(const Inputs& inputs, int64_t now_us) {
  next_us_ = now_us + kPeriodUs;
  load_.sample(measure(inputs, now_us), now_us);
  for (const DegradePolicy::Change& change : policy_.turn(load_, inputs.is_queue_full, now_us)) {
    whys_[static_cast<size_t>(change.kind)] = change.why;
    log_warn(change.is_active ? "degradation begins" : "degradation ends", {{"rung", rung_name(change.kind)}, {"why", change.why}});
    metrics_->add(Metric::kDegradationChanges, 1, {rung_name(change.kind)});
  }
  const bool was_limiting = batch_limit_.is_limiting();
  batch_limit_.turn(policy_.is_active(RungKind::kBatch), now_us);
  if (was_limiting && !batch_limit_.is_limiting()) log_info("batch limit is back to all places");
  export_metrics();
}

void Degradation::export_metrics() {
  for (int i = 0; i < kNumLoadCauses; ++i) {
    auto cause = static_cast<LoadCause>(i);
    double unknown = std::numeric_limits<double>::quiet_NaN();
    metrics_->set(Metric::kLoad, load_.value(cause).value_or(unknown), {load_cause_name(cause)});
  }
  for (int i = 0; i < kNumRungs; ++i) {
    auto kind = static_cast<RungKind>(i);
    metrics_->set(Metric::kDegradationActive, is_active(kind) ? 1 : 0, {rung_name(kind)});
  }
}

api::ApiResult<std::string> Degradation::set(const std::string& name, std::optional<bool> pin) {
  auto kind = parse_rung(name);
  if (!kind) return api::api_error("invalid_value", "`rung` must be one of logprobs, weights-4bit, batch, tokens, shed", "rung");
  if (!policy_.pin(*kind, pin))
    return api::api_error("admin_failed", "the rung " + name + " does nothing here: " + policy_.skip_reason(*kind));
  next_us_ = 0;  // takes effect at once
  if (!pin) return "the load decides about " + name + " again";
  return name + (*pin ? " is pinned on" : " is pinned off");
}

bool Degradation::is_active(RungKind kind) const {
  return policy_.is_active(kind) || (kind == RungKind::kBatch && batch_limit_.is_limiting());
}

std::string Degradation::cause() const {
  std::string text;
  for (const Rung& rung : policy_.ladder().rungs) {
    const RungKind kind = rung.kind;
    if (!is_active(kind)) continue;
    const std::string why = policy_.is_active(kind) ? whys_[static_cast<size_t>(kind)] : "growing back";
    text += (text.empty() ? "" : ", ") + std::string(rung_name(kind)) + (why.empty() ? "" : " (" + why + ")");
  }
  return text.empty() ? "" : "quality is reduced: " + text;
}

DegradationView Degradation::view() const {
  DegradationView v;
  for (int i = 0; i < kNumLoadCauses; ++i) {
    auto cause = static_cast<LoadCause>(i);
    auto value = load_.value(cause);
    v.causes[static_cast<size_t>(i)] = {load_cause_name(cause), value, value ? "" : notes_[static_cast<size_t>(i)]};
  }
  for (const Rung& rung : policy_.ladder().rungs) {
    DegradationView::RungView r;
    r.name = rung_name(rung.kind);
    for (LoadCause cause : rung.causes) r.causes += (r.causes.empty() ? "" : " ") + std::string(load_cause_name(cause));
    r.enter = rung.enter, r.leave = rung.leave;
    r.is_active = is_active(rung.kind);
    if (auto pin = policy_.pinned(rung.kind)) r.pinned = *pin ? "on" : "off";
    r.skip_reason = policy_.skip_reason(rung.kind);
    v.rungs.push_back(std::move(r));
  }
  return v;
}

}  // namespace tandem
