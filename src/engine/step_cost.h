// How long a step will take, learned from the steps that were: so that a chunk of a prompt can be
// cut to the time that running streams may wait.
//
// DESIGN. t = fixed + first * min(M, 16) + further * max(M - 16, 0) + decode_read * R_d +
// prefill_read * R_p, where M counts the tokens of the step and R the pairs of query and key that
// attention visits, in decodes (one query a pass over the keys) and chunks (many). Steps are
// gathered in classes of like shape, each with a running mean that a single hiccup moves by little;
// the five non-negative weights are fitted to the means, relative errors weighing alike. Rejected:
// recursive least squares with forgetting (what no recent step exercised is forgotten too, and then
// one noisy step moves it anywhere) and control by the last step alone (it learns of a long context
// or a fuller batch only by having been late).
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

namespace tandem {

struct StepShape {
  int n_decode = 0, n_prefill = 0;              // tokens
  int64_t decode_reads = 0, prefill_reads = 0;  // pairs of query and key
  bool operator==(const StepShape&) const = default;
};

class StepCost {
 public:
  static constexpr int kNumWeights = 5;
  using Weights = std::array<double, kNumWeights>;  // microseconds; in the order of the note

  StepCost() = default;
  explicit StepCost(const Weights& weights) : weights_(weights) {}  // a model that is known

  void observe(const StepShape& shape, double us);
  double predict_us(const StepShape& shape) const;
  const Weights& weights() const { return weights_; }
  bool is_known() const { return n_observed_ > 0; }
  // How many times as long as predicted a step with decodes and a chunk takes that 19 of 20 stay below; 1 to 1.5.
  double lateness() const { return lateness_; }
  int largest_mixed() const { return largest_mixed_; }  // most prefill tokens beside decodes so far

  // The non-negative weights that fit best: `rows` of features and microseconds.
  struct Row {
    StepShape shape;
    double us = 0;
  };
  template <typename Rows>
  static Weights fit(const Rows& rows);
  static Weights features(const StepShape& shape);

 private:
  struct Mean {
    Weights features{};  // means too
    double us = 0;
    int64_t n = 0, last = 0;  // observations; the number of the latest
  };
  struct Equations {
    double a[kNumWeights][kNumWeights] = {}, b[kNumWeights] = {};
    void add(const Weights& features, double us);
    Weights solve(Weights start) const;
  };

  void refit();
  void forget_oldest();

  std::unordered_map<uint64_t, Mean> means_;  // by class of shape
  Weights weights_{};
  int64_t n_observed_ = 0;
  int largest_mixed_ = 0;
  double lateness_ = 1;
};

template <typename Rows>
StepCost::Weights StepCost::fit(const Rows& rows) {
  Equations equations;
  for (const Row& row : rows) equations.add(features(row.shape), row.us);
  return equations.solve({});
}

}  // namespace tandem
