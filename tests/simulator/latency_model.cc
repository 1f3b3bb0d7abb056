#include "latency_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tandem {

Result<std::vector<StepCost::Row>> read_bench(const std::string& text, int chunk) {
  auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.contains("results") || !json["results"].is_array())
    return invalid_argument("not the output of `tandem bench --json`");
  std::vector<StepCost::Row> rows;
  for (const auto& r : json["results"]) {
    int batch = r.value("batch", 0), prompt = r.value("prompt", 0), gen = r.value("gen", 0);
    double prefill = r.value("prefill_tokens_per_s", 0.0), decode = r.value("decode_tokens_per_s", 0.0);
    if (batch < 1 || prompt < 1 || gen < 1 || prefill <= 0 || decode <= 0)
      return invalid_argument("a row of `tandem bench --json` lacks batch, prompt, gen or a speed");
    StepShape d{batch, 0, int64_t{batch} * (prompt + gen / 2), 0};
    rows.push_back({d, 1e6 * batch / decode});
    int n = std::min(chunk, prompt);
    StepShape p{0, n, 0, int64_t{n} * prompt / 2};
    rows.push_back({p, 1e6 * n / prefill});
  }
  return rows;
}

Result<LatencyModel> fit_latency(const std::vector<std::string>& files) {
  std::vector<StepCost::Row> rows;
  for (const std::string& file : files) {
    size_t colon = file.rfind(':');
    bool has_chunk = colon != std::string::npos && colon + 1 < file.size() &&
                     file.find_first_not_of("0123456789", colon + 1) == std::string::npos;
    std::string path = has_chunk ? file.substr(0, colon) : file;
    int chunk = has_chunk ? std::atoi(file.c_str() + colon + 1) : 256;
    if (chunk < 1) return invalid_argument("the chunk of " + file + " must be >= 1");
    std::ifstream in(path);
    if (!in) return not_found("cannot read " + path);
    std::ostringstream text;
    text << in.rdbuf();
    auto read = read_bench(text.str(), chunk);
    if (!read.ok()) return invalid_argument(path + ": " + read.status().message());
    rows.insert(rows.end(), read->begin(), read->end());
  }
  LatencyModel model;
  model.cost = StepCost(StepCost::fit(rows));
  return model;
}

Result<LatencyModel> parse_weights(const std::string& text) {
  StepCost::Weights weights{};
  std::istringstream in(text);
  char comma = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(in >> weights[i]) || weights[i] < 0 || (i + 1 < weights.size() && !(in >> comma)))
      return invalid_argument("weights must be five numbers >= 0, separated by commas, got " + text);
  }
  LatencyModel model;
  model.cost = StepCost(weights);
  return model;
}

std::string print_weights(const StepCost& cost) {
  const StepCost::Weights& w = cost.weights();
  return fmt::format("{:.2f},{:.2f},{:.2f},{:.4f},{:.4f}", w[0], w[1], w[2], w[3], w[4]);
}

LatencyModel example_latency() {
  LatencyModel model;
  model.cost = StepCost({2600, 1450, 700, 330, 55});
  return model;
}

}  // namespace tandem
