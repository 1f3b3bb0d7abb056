#include "trace.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace tandem {
namespace {

Result<std::vector<SimRequest>> read_lines(const std::string& text, const std::string& path) {
  std::vector<SimRequest> trace;
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    double arrival_ms = 0;
    SimRequest r;
    bool is_good = static_cast<bool>(fields >> arrival_ms >> r.n_prompt >> r.n_output);
    if (is_good && !(fields >> r.priority)) r.priority = 1;
    fields >> r.key;
    if (!is_good || arrival_ms < 0 || r.n_prompt < 1 || r.n_output < 1 || r.priority < 0 || r.priority > 2)
      return invalid_argument(path + ":" + std::to_string(number) +
                              ": expected `arrival_ms prompt output [priority 0|1|2 [key]]`");
    r.arrival_us = static_cast<int64_t>(arrival_ms * 1000);
    trace.push_back(r);
  }
  return trace;
}

Result<std::vector<SimRequest>> read_rows(const std::string& text, const std::string& path) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.contains("data") || !json["data"].is_array())
    return invalid_argument(path + ": not the answer of /v1/requests");
  std::map<std::string, int> keys;
  std::vector<SimRequest> trace;
  for (const auto& row : json["data"]) {
    SimRequest r;
    r.arrival_us = row.value("received_us", int64_t{0});
    r.n_prompt = std::max(1, row.value("prompt_tokens", 1));
    r.n_output = std::max(1, row.value("completion_tokens", 1));
    std::string priority = row.value("priority", "normal"), client = row.value("client", "");
    r.priority = priority == "high" ? 0 : priority == "low" ? 2 : 1;
    r.key = keys.emplace(client, static_cast<int>(keys.size())).first->second;
    trace.push_back(r);
  }
  return trace;
}

}  // namespace

std::vector<SimRequest> make_trace(const SyntheticTrace& t) {
  std::mt19937_64 random(t.seed);
  std::uniform_real_distribution<double> share(0, 1);
  std::exponential_distribution<double> gap(std::max(t.per_second, 1e-9));
  std::vector<SimRequest> trace;
  trace.reserve(static_cast<size_t>(t.n_requests));
  double now_s = 0;
  for (int64_t i = 0; i < t.n_requests; ++i) {
    if (t.per_second > 0) now_s += gap(random);
    SimRequest r;
    r.arrival_us = static_cast<int64_t>(now_s * 1e6);
    bool is_long = share(random) < t.long_share;
    r.n_prompt = is_long ? t.long_prompt : t.short_prompt;
    r.n_output = is_long ? t.long_output : t.short_output;
    r.n_shared = std::min(t.n_shared, r.n_prompt);
    double which = share(random);
    r.priority = which < t.high_share ? 0 : which < t.high_share + t.low_share ? 2 : 1;
    r.key = static_cast<int>(random() % static_cast<uint64_t>(std::max(1, t.n_keys)));
    if (share(random) < t.cancel_share) r.cancel_us = 1 + static_cast<int64_t>(share(random) * 1e6);
    if (share(random) < t.timeout_share) r.timeout_us = static_cast<int64_t>(share(random) * 2.2e6) - 200'000;
    trace.push_back(r);
  }
  return trace;
}

Result<std::vector<SimRequest>> read_trace(const std::string& path) {
  std::ifstream in(path);
  if (!in) return not_found("cannot read the trace " + path);
  std::ostringstream text;
  text << in.rdbuf();
  std::string content = text.str();
  size_t first = content.find_first_not_of(" \n\r\t");
  bool is_json = first != std::string::npos && content[first] == '{';
  CHECK_ASSIGN(std::vector<SimRequest> trace, is_json ? read_rows(content, path) : read_lines(content, path));
  if (trace.empty()) return invalid_argument(path + ": no requests in it");
  std::stable_sort(trace.begin(), trace.end(),
                   [](const SimRequest& a, const SimRequest& b) { return a.arrival_us < b.arrival_us; });
  int64_t start = trace.front().arrival_us;
  for (SimRequest& r : trace) r.arrival_us -= start;
  return trace;
}

}  // namespace tandem
