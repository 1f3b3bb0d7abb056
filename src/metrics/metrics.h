// The metrics of design.md 8, from the table metrics.def, over prometheus-cpp (which only
// metrics.cc sees). Thread-safe. Scraping changes nothing. A metric, label value or operation that
// the table does not allow is our bug and ends the process.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

enum class Metric {
#define METRIC(kind, id, name, labels, buckets, help) id,
#include "metrics/metrics.def"
#undef METRIC
};

class Metrics {
 public:
  Metrics();  // every series of the table exists at zero
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  using Labels = std::initializer_list<std::string_view>;     // values, in the order of the table
  void add(Metric metric, double delta, Labels labels = {});  // Counter; delta >= 0
  void set(Metric metric, double value, Labels labels = {});  // Gauge
  // Histogram: n observations of `value` each.
  void observe(Metric metric, double value, Labels labels = {}, unsigned n = 1);
  // Value of a counter or gauge, number of observations of a histogram.
  double value(Metric metric, Labels labels = {}) const;
  std::string text() const;  // Prometheus text exposition format 0.0.4

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
