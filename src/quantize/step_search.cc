#include "quantize/step_search.h"

#include <algorithm>

#include "kernels/quant_blocks.h"

namespace tandem {

namespace {

constexpr float kNothing = 1e-15f;  // a block whose values are all below is zero
constexpr int kTurns = 3;           // of refining: later ones change few levels

// Least squares over scale and min for given levels; false where all levels are equal.
bool fit_plain(const float* x, const float* weight, const int* level, Affine* out) {
  float sw = 0, sx = 0, sl = 0, sll = 0, sxl = 0;
  for (int i = 0; i < QK; ++i) {
    const float l = static_cast<float>(level[i]), w = weight[i];
    sw += w;
    sx += w * x[i];
    sl += w * l;
    sll += w * l * l;
    sxl += w * x[i] * l;
  }
  const float determinant = sw * sll - sl * sl;
  if (!(determinant > 0)) return false;
  out->scale = (sw * sxl - sx * sl) / determinant;
  out->min = (sll * sx - sl * sxl) / determinant;
  if (out->min > 0) *out = {sxl / sll, 0};
  return true;
}

// The same about the means. Where hardly more than one level counts, the scale stays `step` and the minimum alone is fitted; false
// where nothing counts.
bool fit_centered(const float* x, const float* weight, const int* level, float step, bool is_min_free, Affine* out) {
  constexpr float kOneLevel = 1e-6f;  // of levels' variance: less is rounding
  float sw = 0, sx = 0, sl = 0;
  for (int i = 0; i < QK; ++i) {
    sw += weight[i];
    sx += weight[i] * x[i];
    sl += weight[i] * static_cast<float>(level[i]);
  }
  if (!(sw > 0)) return false;
  const float mean_x = sx / sw, mean_l = sl / sw;
  float variance = 0, covariance = 0;  // times sw
  for (int i = 0; i < QK; ++i) {
    const float l = static_cast<float>(level[i]) - mean_l;
    variance += weight[i] * l * l;
    covariance += weight[i] * l * (x[i] - mean_x);
  }
  out->scale = variance > kOneLevel * sw ? covariance / variance : step;
  out->min = mean_x - out->scale * mean_l;
  if (out->min > 0 && !is_min_free) *out = {(covariance + sx * mean_l) / (variance + sl * mean_l), 0};
  return true;
}

float weighted_error(const float* x, const float* weight, const int* level, const Affine& a) {
  float sum = 0;
  for (int i = 0; i < QK; ++i) {
    const float difference = a.scale * static_cast<float>(level[i]) + a.min - x[i];
    sum += weight[i] * difference * difference;
  }
  return sum;
}

// The sums of the best scale for the levels that `steps` a unit give: sxl / sll.
struct ScaleSums {
  float sxl = 0, sll = 0;
};
ScaleSums sum_scale(const float* x, const float* weight, int n, const LevelRange& range, float steps) {
  ScaleSums s;
  for (int i = 0; i < n; ++i) {
    const float l = static_cast<float>(nearest_level(steps * x[i], range.low, range.high)), w = weight[i];
    s.sxl += w * x[i] * l;
    s.sll += w * l * l;
  }
  return s;
}

}  // namespace

Affine search_affine(const float* x, const float* weight, const AffineSearch& search) {
  const float lowest = *std::min_element(x, x + QK), high = *std::max_element(x, x + QK);
  const float low = search.is_min_free ? lowest : std::min(0.0f, lowest);
  if (!(high > low)) return {0, low};  // one value, not above zero unless min is free
  const int top = search.n_levels - 1;
  Affine best{(high - low) / static_cast<float>(top), low};
  float least = INFINITY;
  for (int t = -1; t <= search.n_tries; ++t) {  // -1: the plain step, judged as it is
    const float more = t < 0 ? 0 : search.first + 0.1f * static_cast<float>(t);
    const float steps = (static_cast<float>(top) + more) / (high - low);
    int level[QK];
    for (int i = 0; i < QK; ++i) level[i] = nearest_level(steps * (x[i] - low), 0, top);
    Affine a = best;
    if (t >= 0) {
      const bool fits = search.is_centered ? fit_centered(x, weight, level, 1 / steps, search.is_min_free, &a)
                                           : fit_plain(x, weight, level, &a);
      if (!fits || !(a.scale > 0)) continue;
    }
    const float error = weighted_error(x, weight, level, a);
    if (error < least) best = a, least = error;
  }
  return best;
}

Affine refine_affine(const float* x, const float* weight, const AffineSearch& search, Affine a) {
  for (int turn = 0; turn < kTurns && a.scale > 0; ++turn) {
    int level[QK];
    for (int i = 0; i < QK; ++i) level[i] = nearest_level((x[i] - a.min) / a.scale, 0, search.n_levels - 1);
    Affine next;
    if (!fit_centered(x, weight, level, a.scale, search.is_min_free, &next) || !(next.scale > 0)) break;
    a = next;
  }
  return a;
}

float search_scale(const float* x, const float* weight, int n, const LevelRange& range, std::span<const float> widths) {
  float extreme = 0;
  for (int i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  if (std::fabs(extreme) < kNothing) return 0;
  float best = 0, most = 0;
  for (const float width : widths) {
    const ScaleSums s = sum_scale(x, weight, n, range, -width / extreme);
    // The squared error of the best scale for these levels is a constant minus sxl^2 / sll.
    if (s.sll > 0 && s.sxl * s.sxl > most * s.sll) best = s.sxl / s.sll, most = s.sxl * best;
  }
  return best;
}

float refine_scale(const float* x, const float* weight, int n, const LevelRange& range, float scale) {
  for (int turn = 0; turn < kTurns && scale != 0; ++turn) {
    const ScaleSums s = sum_scale(x, weight, n, range, 1 / scale);
    if (!(s.sll > 0)) break;
    scale = s.sxl / s.sll;
  }
  return scale;
}

}  // namespace tandem
