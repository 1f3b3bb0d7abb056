#include "model/rope_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/float_tensor.h"

namespace tandem {
namespace {

constexpr double kMaxFactor = 1e6;
using Frequencies = std::vector<double>;

Frequencies plain_frequencies(int dim, double theta) {
  Frequencies f;
  for (int i = 0; i < dim / 2; ++i) f.push_back(std::pow(theta, -2.0 * i / dim));
  return f;
}

void set_frequencies(const Frequencies& from, RopeParams* rope) {
  rope->inv_freq.clear();
  for (double f : from) rope->inv_freq.push_back(static_cast<float>(f));
}

// Frequencies divided, pair by pair, by a tensor of dim/2 positive numbers.
Status divide_by_tensor(const GgufModel& file, const std::string& name, Frequencies* f) {
  CHECK_ASSIGN(std::vector<float> factors,
               read_float_tensor(file, name, static_cast<int64_t>(f->size())));
  for (size_t i = 0; i < f->size(); ++i) {
    if (!(factors[i] > 0))
      return invalid_argument(fmt::format("{}: tensor \"{}\": value {} must be above 0, found {}",
                                          file.name(), name, i, factors[i]));
    (*f)[i] /= factors[i];
  }
  return ok_status();
}

Status scale_llama3(const ConfigReader& keys, double factor, int original, Frequencies* f) {
  CHECK_ASSIGN(double low, keys.real("rope.scaling.low_freq_factor", 1e-3, kMaxFactor, 1.0));
  CHECK_ASSIGN(double high, keys.real("rope.scaling.high_freq_factor", 1e-3, kMaxFactor, 4.0));
  if (high <= low)
    return keys.bad("rope.scaling.high_freq_factor", fmt::format("above low_freq_factor {}", low),
                    fmt::format("{}", high));
  for (double& freq : *f) {
    double turns = original * freq / (2 * std::numbers::pi);  // over the original context
    double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    freq = freq * keep + freq / factor * (1 - keep);
  }
  return ok_status();
}

// Pair (fractional) that turns `turns` times over the original context.
double yarn_pair(double turns, int dim, int original, double theta) {
  return dim * std::log(original / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

Status scale_yarn(const ConfigReader& keys, double factor, int original, Frequencies* f,
                  RopeParams* rope) {
  CHECK_ASSIGN(double fast, keys.real("rope.scaling.yarn_beta_fast", 1e-3, kMaxFactor, 32.0));
  CHECK_ASSIGN(double slow, keys.real("rope.scaling.yarn_beta_slow", 1e-3, kMaxFactor, 1.0));
  double begin = std::max(0.0, std::floor(yarn_pair(fast, rope->dim, original, rope->theta)));
  double end =
      std::min(rope->dim - 1.0, std::ceil(yarn_pair(slow, rope->dim, original, rope->theta)));
  for (size_t i = 0; i < f->size(); ++i) {
    double ramp = (static_cast<double>(i) - begin) / std::max(0.001, end - begin);
    double keep = 1 - std::clamp(ramp, 0.0, 1.0);
    (*f)[i] = (*f)[i] * keep + (*f)[i] / factor * (1 - keep);
  }
  if (factor > 1) rope->attention_factor *= static_cast<float>(1 + 0.1 * std::log(factor));
  return ok_status();
}

Status scale_longrope(const ConfigReader& keys, int context_tokens, int original, Frequencies* f,
                      RopeParams* rope) {
  int in_force =
      keys.context_limit() > 0 ? std::min(keys.context_limit(), context_tokens) : context_tokens;
  Frequencies with_short = *f, with_long = *f;
  CHECK_OK(divide_by_tensor(keys.file(), "rope_factors_short.weight", &with_short));
  CHECK_OK(divide_by_tensor(keys.file(), "rope_factors_long.weight", &with_long));
  *f = in_force > original ? with_long : with_short;
  double stretch = static_cast<double>(context_tokens) / original;
  if (!keys.has("rope.scaling.attn_factor") && stretch > 1 && original > 1)
    rope->attention_factor =
        static_cast<float>(std::sqrt(1 + std::log(stretch) / std::log(original)));
  return ok_status();
}

// The factor of linear scaling has an older key of its own.
Result<double> read_factor(const ConfigReader& keys) {
  CHECK_ASSIGN(double old, keys.real("rope.scale_linear", 0, kMaxFactor, 0));
  CHECK_ASSIGN(double factor, keys.real("rope.scaling.factor", 0, kMaxFactor, old));
  return factor == 0 ? 1.0 : factor;
}

}  // namespace

RopeParams plain_rope(int dim, double theta, RopeStyle style) {
  RopeParams rope;
  rope.dim = dim;
  rope.theta = static_cast<float>(theta);
  rope.style = style;
  set_frequencies(plain_frequencies(dim, theta), &rope);
  return rope;
}

Result<RopeParams> read_rope(const ConfigReader& keys, int head_dim, int context_tokens,
                             RopeStyle style) {
  CHECK_ASSIGN(int dim, keys.integer("rope.dimension_count", 2, head_dim, head_dim));
  if (dim % 2 != 0) return keys.bad("rope.dimension_count", "even", std::to_string(dim));
  CHECK_ASSIGN(double theta, keys.real("rope.freq_base", 1.0001, 1e12, 10000.0));
  CHECK_ASSIGN(double factor, read_factor(keys));
  CHECK_ASSIGN(int original,
               keys.integer("rope.scaling.original_context_length", 1, 1 << 30, context_tokens));
  CHECK_ASSIGN(double attention_factor, keys.real("rope.scaling.attn_factor", 1e-3, 1e3, 1.0));
  const GgufModel& file = keys.file();
  bool has_factors =
      file.find_tensor("rope_factors_long.weight") || file.find_tensor("rope_factors_short.weight");
  // A factor without a type is linear; phi3 files carry factor tensors without a type.
  CHECK_ASSIGN(std::string type,
               keys.text("rope.scaling.type", has_factors ? "longrope" : "linear"));

  RopeParams rope = plain_rope(dim, theta, style);
  rope.attention_factor = static_cast<float>(attention_factor);
  Frequencies f = plain_frequencies(dim, theta);
  if (type == "linear") {
    for (double& freq : f) freq /= factor;
  } else if (type == "llama3") {
    CHECK_OK(scale_llama3(keys, factor, original, &f));
  } else if (type == "yarn") {
    CHECK_OK(scale_yarn(keys, factor, original, &f, &rope));
  } else if (type == "longrope") {
    CHECK_ASSIGN(original, keys.integer("rope.scaling.original_context_length", 1, 1 << 30));
    CHECK_OK(scale_longrope(keys, context_tokens, original, &f, &rope));
  } else if (type != "none") {
    return keys.bad("rope.scaling.type", "none, linear, llama3, yarn or longrope",
                    "\"" + type + "\"");
  }
  if (file.find_tensor("rope_freqs.weight"))
    CHECK_OK(divide_by_tensor(file, "rope_freqs.weight", &f));
  set_frequencies(f, &rope);
  return rope;
}

}  // namespace tandem
