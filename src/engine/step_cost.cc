#include "engine/step_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tandem {
namespace {

constexpr int kKnee = 16;                // tokens up to which a step costs other than beyond
constexpr double kReadScale = 1024;      // keeps the five features within a few orders of magnitude
constexpr double kLeastShare = 0.05;     // of the newest step in a class's mean: a hundred steps' memory
constexpr double kMostSurprise = 0.5;    // how far one step may lie off the mean, as a share of it
constexpr size_t kMaxClasses = 96;
constexpr int kRefitEvery = 8;           // steps
constexpr int kRefitAlwaysBelow = 64;    // steps: at first each counts
constexpr int kSweeps = 60;              // of coordinate descent
constexpr double kLateShare = 0.05;      // of steps that may be later than lateness() says
constexpr double kLateStep = 0.02;       // of the estimate, a step
constexpr double kMostLate = 1.5;

uint64_t log_class(int64_t n) { return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(n, 0))); }

// Shapes that differ by less than a factor of two in every respect; small numbers of tokens apart.
uint64_t class_of(const StepShape& s) {
  auto tokens = [](int n) { return n <= 4 ? static_cast<uint64_t>(n) : 4 + 2 * log_class(n) + ((n >> (log_class(n) - 2)) & 1); };
  return tokens(s.n_decode) | tokens(s.n_prefill) << 8 | log_class(s.decode_reads >> 8) << 16 |
         log_class(s.prefill_reads >> 8) << 24;
}

}  // namespace

StepCost::Weights StepCost::features(const StepShape& s) {
  int n = s.n_decode + s.n_prefill;
  return {1.0, static_cast<double>(std::min(n, kKnee)), static_cast<double>(std::max(n - kKnee, 0)),
          static_cast<double>(s.decode_reads) / kReadScale,
          static_cast<double>(s.prefill_reads) / kReadScale};
}

double StepCost::predict_us(const StepShape& shape) const {
  Weights x = features(shape);
  double us = 0;
  for (int i = 0; i < kNumWeights; ++i) us += weights_[i] * x[i];
  return us;
}

void StepCost::observe(const StepShape& shape, double us) {
  if (shape.n_decode > 0 && shape.n_prefill > 0 && is_known()) {
    bool is_late = us > predict_us(shape) * lateness_;
    lateness_ = std::clamp(lateness_ + kLateStep * (is_late ? 1 - kLateShare : -kLateShare), 1.0, kMostLate);
  }
  ++n_observed_;
  if (shape.n_decode > 0) largest_mixed_ = std::max(largest_mixed_, shape.n_prefill);
  uint64_t key = class_of(shape);
  if (means_.size() >= kMaxClasses && !means_.contains(key)) forget_oldest();
  Mean& mean = means_[key];
  double share = std::max(1.0 / static_cast<double>(++mean.n), kLeastShare);
  if (mean.n > 1) us = std::clamp(us, mean.us * (1 - kMostSurprise), mean.us * (1 + kMostSurprise));
  mean.us += share * (us - mean.us);
  Weights x = features(shape);
  for (int i = 0; i < kNumWeights; ++i) mean.features[i] += share * (x[i] - mean.features[i]);
  mean.last = n_observed_;
  if (n_observed_ < kRefitAlwaysBelow || mean.n == 1 || n_observed_ % kRefitEvery == 0) refit();
}

void StepCost::forget_oldest() {
  auto oldest = std::min_element(means_.begin(), means_.end(), [](const auto& a, const auto& b) {
    return a.second.last < b.second.last;
  });
  means_.erase(oldest);
}

void StepCost::refit() {
  Equations equations;
  for (const auto& [key, mean] : means_) equations.add(mean.features, mean.us);
  weights_ = equations.solve(weights_);
}

void StepCost::Equations::add(const Weights& x, double us) {
  double weight = 1 / std::max(us * us, 1.0);
  for (int i = 0; i < kNumWeights; ++i) {
    for (int j = 0; j < kNumWeights; ++j) a[i][j] += weight * x[i] * x[j];
    b[i] += weight * x[i] * us;
  }
}

// Coordinate descent with each weight kept at zero or above. A trace of ridge holds what no step
// exercised at zero.
StepCost::Weights StepCost::Equations::solve(Weights w) const {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int i = 0; i < kNumWeights; ++i) {
      if (a[i][i] <= 0) {
        w[i] = 0;
        continue;
      }
      double rest = b[i];
      for (int j = 0; j < kNumWeights; ++j) {
        if (j != i) rest -= a[i][j] * w[j];
      }
      w[i] = std::max(0.0, rest / (a[i][i] * (1 + 1e-6)));
    }
  }
  return w;
}

}  // namespace tandem
