// The text is parsed strictly, by the rules of the exposition format 0.0.4.
#include "metrics/metrics.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "metrics/worker_counters.h"

using namespace tandem;

namespace {

struct Parsed {
  std::map<std::string, std::string> types;
  std::map<std::string, double> samples;  // by full series name, as written
  std::vector<std::string> faults;
};

bool is_name(const std::string& s) {
  if (s.empty() || (s[0] >= '0' && s[0] <= '9')) return false;
  for (char c : s) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != ':') return false;
  }
  return true;
}

// name{a="x",b="y"} -> the name; a fault for anything else.
std::string split_series(const std::string& series, std::vector<std::string>* faults) {
  size_t brace = series.find('{');
  std::string name = series.substr(0, brace);
  if (!is_name(name)) faults->push_back("bad name: " + series);
  if (brace == std::string::npos) return name;
  if (series.back() != '}') faults->push_back("unclosed: " + series);
  std::string labels = series.substr(brace + 1, series.size() - brace - 2);
  for (size_t at = 0; at < labels.size();) {
    size_t eq = labels.find("=\"", at), quote = labels.find('"', eq + 2);
    if (eq == std::string::npos || quote == std::string::npos ||
        !is_name(labels.substr(at, eq - at))) {
      faults->push_back("bad label: " + series);
      break;
    }
    at = quote + 1;
    if (at < labels.size() && labels[at] == ',') ++at;
  }
  return name;
}

// The family a sample belongs to: histograms add suffixes.
std::string family_of(const std::string& name, const std::map<std::string, std::string>& types) {
  if (types.count(name) > 0) return name;
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    std::string s = suffix;
    if (name.size() > s.size() && name.compare(name.size() - s.size(), s.size(), s) == 0) {
      std::string base = name.substr(0, name.size() - s.size());
      if (types.count(base) > 0 && types.at(base) == "histogram") return base;
    }
  }
  return "";
}

Parsed parse(const std::string& text) {
  Parsed p;
  if (text.empty() || text.back() != '\n') p.faults.push_back("no newline at the end");
  std::set<std::string> helped, closed;
  std::string current;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("# HELP ", 0) == 0) {
      std::string name = line.substr(7, line.find(' ', 7) - 7);
      if (!helped.insert(name).second) p.faults.push_back("second HELP of " + name);
      continue;
    }
    if (line.rfind("# TYPE ", 0) == 0) {
      size_t space = line.find(' ', 7);
      std::string name = line.substr(7, space - 7), type = line.substr(space + 1);
      if (type != "counter" && type != "gauge" && type != "histogram")
        p.faults.push_back("type: " + line);
      if (!p.types.emplace(name, type).second) p.faults.push_back("second TYPE of " + name);
      closed.insert(current);
      current = name;
      continue;
    }
    size_t space = line.rfind(' ');
    if (space == std::string::npos) {
      p.faults.push_back("no value: " + line);
      continue;
    }
    std::string series = line.substr(0, space);
    std::string name = split_series(series, &p.faults), family = family_of(name, p.types);
    if (family != current) p.faults.push_back("outside its family: " + line);
    char* end = nullptr;
    double value = std::strtod(line.c_str() + space + 1, &end);
    if (*end != 0) p.faults.push_back("value: " + line);
    if (!p.samples.emplace(series, value).second) p.faults.push_back("twice: " + series);
  }
  return p;
}

void check_histograms(const Parsed& p) {
  for (const auto& [series, count] : p.samples) {
    size_t at = series.find("_count");
    if (at == std::string::npos || p.types.count(series.substr(0, at)) == 0) continue;
    std::string base = series.substr(0, at), labels = series.substr(at + 6);
    std::string inner = labels.empty() ? "" : labels.substr(1, labels.size() - 2) + ",";
    CHECK(p.samples.count(base + "_sum" + labels) == 1);
    CHECK(p.samples.at(base + "_bucket{" + inner + "le=\"+Inf\"}") == count);
    std::map<double, double> buckets;
    std::string prefix = base + "_bucket{" + inner + "le=\"";
    for (const auto& [s, v] : p.samples) {
      if (s.rfind(prefix, 0) == 0) buckets[std::strtod(s.c_str() + prefix.size(), nullptr)] = v;
    }
    CHECK(buckets.size() > 5);
    double before = 0;
    for (const auto& [bound, v] : buckets) {
      CHECK(v >= before);
      before = v;
    }
  }
}

}  // namespace

TEST_CASE("all series exist at zero from the start, in valid text") {
  Metrics metrics;
  Parsed p = parse(metrics.text());
  CHECK(p.faults.empty());
  for (const std::string& f : p.faults) UNSCOPED_INFO(f);
  for (const auto& [series, value] : p.samples) {
    INFO(series);
    CHECK(value == 0);
  }
  for (const char* series : {"llm_inference_latency_seconds_count{stage=\"queue\"}",
                             "llm_inference_latency_seconds_count{stage=\"prefill\"}",
                             "llm_inference_latency_seconds_count{stage=\"decode\"}",
                             "llm_inference_latency_seconds_count{stage=\"sampling\"}",
                             "llm_inference_latency_seconds_count{stage=\"total\"}",
                             "llm_inference_kv_cache_usage_ratio",
                             "llm_batch_size_current",
                             "llm_time_to_first_token_seconds_count",
                             "llm_inter_token_latency_seconds_count",
                             "llm_requests_waiting{priority=\"high\"}",
                             "llm_requests_waiting{priority=\"normal\"}",
                             "llm_requests_waiting{priority=\"low\"}",
                             "llm_requests_running",
                             "llm_requests_total{outcome=\"stop\"}",
                             "llm_requests_total{outcome=\"length\"}",
                             "llm_requests_total{outcome=\"deadline\"}",
                             "llm_requests_total{outcome=\"aborted\"}",
                             "llm_requests_total{outcome=\"failed\"}",
                             "llm_requests_total{outcome=\"cancelled\"}",
                             "llm_requests_total{outcome=\"rejected\"}",
                             "llm_prompt_tokens_total",
                             "llm_generation_tokens_total",
                             "llm_prefix_cache_hit_tokens_total",
                             "llm_preemptions_total{kind=\"recompute\"}",
                             "llm_kv_pages{state=\"used\"}",
                             "llm_kv_pages{state=\"free\"}",
                             "llm_request_log_dropped_total"}) {
    INFO(series);
    CHECK(p.samples.count(series) == 1);
  }
  check_histograms(p);
}

TEST_CASE("values, histograms and a text that a scrape doesn't change") {
  Metrics metrics;
  metrics.add(Metric::kRequests, 1, {"stop"});
  metrics.add(Metric::kRequests, 2, {"cancelled"});
  metrics.add(Metric::kPromptTokens, 4'000'000'000.0);
  metrics.set(Metric::kRequestsRunning, 3);
  for (double s : {0.0005, 0.001, 0.02, 3.0, 1e4}) metrics.observe(Metric::kTimeToFirstToken, s);
  metrics.observe(Metric::kLatency, 0.5, {"sampling"}, 7);
  std::string text = metrics.text();
  CHECK(metrics.text() == text);
  Parsed p = parse(text);
  CHECK(p.faults.empty());
  check_histograms(p);
  CHECK(p.samples.at("llm_requests_total{outcome=\"cancelled\"}") == 2);
  CHECK(p.samples.at("llm_prompt_tokens_total") == 4e9);
  CHECK(p.samples.at("llm_requests_running") == 3);
  CHECK(p.samples.at("llm_time_to_first_token_seconds_count") == 5);
  CHECK(p.samples.at("llm_time_to_first_token_seconds_bucket{le=\"0.001\"}") == 2);
  CHECK(p.samples.at("llm_time_to_first_token_seconds_sum") == Approx(10003.0215));
  CHECK(p.samples.at("llm_inference_latency_seconds_sum{stage=\"sampling\"}") == Approx(3.5));
  CHECK(metrics.value(Metric::kTimeToFirstToken) == 5);
}

TEST_CASE("worker counters add up over restarts and never fall") {
  Metrics metrics;
  WorkerGauges gauges(&metrics);
  WorkerCounters counters(&metrics, &gauges);
  double last = 0;
  for (int life = 0; life < 10; ++life) {
    for (uint64_t beat = 1; beat <= 5; ++beat) {
      ipc::Heartbeat h;
      h.preemptions = beat * 2, h.swaps = beat * 3, h.pages_swapped = 4, h.steps = beat * 10,
      h.sampling_seconds = static_cast<double>(beat) * 0.1;
      h.pages_used = 30, h.pages_free = 70, h.pages_shared = 5, h.n_running = 2, h.last_batch = 2;
      counters.on_heartbeat(h);
      double now = metrics.value(Metric::kPreemptions, {"recompute"});
      CHECK(now == last + 2);
      last = now;
    }
    CHECK(metrics.value(Metric::kPreemptions, {"swap"}) == 15 * (life + 1));
    CHECK(metrics.value(Metric::kKvPages, {"swapped"}) == 4);
    CHECK(metrics.value(Metric::kKvCacheUsage) == Approx(0.3));
    CHECK(metrics.value(Metric::kBatchSize) == 2);
    counters.on_worker_end();
    CHECK(metrics.value(Metric::kKvCacheUsage) == 0);
    CHECK(metrics.value(Metric::kBatchSize) == 0);
  }
  CHECK(metrics.value(Metric::kLatency, {"sampling"}) == 500);
  ipc::Heartbeat damaged;
  damaged.preemptions = 5;
  counters.on_heartbeat(damaged);
  damaged.preemptions = 1;
  counters.on_heartbeat(damaged);
  CHECK(metrics.value(Metric::kPreemptions, {"recompute"}) == last + 5);
}
