#include "metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "base/check.h"

namespace tandem {
namespace {

enum class Kind { Counter, Gauge, Histogram };
struct Row {
  Kind kind;
  const char* name;
  const char* labels;
  const char* buckets;
  const char* help;
};
constexpr Row kRows[] = {
#define METRIC(kind, id, name, labels, buckets, help) {Kind::kind, name, labels, buckets, help},
#include "metrics/metrics.def"
#undef METRIC
};

struct Series {
  std::vector<std::string> values;  // label values, in the order of the table
  prometheus::Counter* counter = nullptr;
  prometheus::Gauge* gauge = nullptr;
  prometheus::Histogram* histogram = nullptr;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// "a=x|y;b=z" -> {a:x,b:z}, {a:y,b:z}
struct LabelSet {
  std::vector<std::string> names;
  std::vector<std::vector<std::string>> combinations{{}};
};
LabelSet parse_labels(const char* spec) {
  LabelSet set;
  for (const std::string& label : split(spec, ';')) {
    size_t eq = label.find('=');
    set.names.push_back(label.substr(0, eq));
    std::vector<std::vector<std::string>> longer;
    for (const auto& prefix : set.combinations) {
      for (const std::string& value : split(label.substr(eq + 1), '|')) {
        longer.push_back(prefix);
        longer.back().push_back(value);
      }
    }
    set.combinations = std::move(longer);
  }
  return set;
}

prometheus::Histogram::BucketBoundaries parse_buckets(const char* spec) {
  prometheus::Histogram::BucketBoundaries bounds;
  for (const std::string& bound : split(spec, ' ')) bounds.push_back(std::stod(bound));
  return bounds;
}

template <typename Add>
std::vector<Series> make_series(const LabelSet& labels, const Add& add) {
  std::vector<Series> series;
  for (const auto& values : labels.combinations) {
    prometheus::Labels map;
    for (size_t i = 0; i < values.size(); ++i) map[labels.names[i]] = values[i];
    Series s;
    s.values = values;
    add(map, &s);
    series.push_back(std::move(s));
  }
  return series;
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  std::vector<std::vector<Series>> series;  // [Metric][combination]; immutable after construction

  std::vector<Series> build(const Row& row) {
    LabelSet labels = parse_labels(row.labels);
    if (row.kind == Kind::Counter) {
      auto& family = prometheus::BuildCounter().Name(row.name).Help(row.help).Register(registry);
      return make_series(labels,
                         [&](const auto& map, Series* s) { s->counter = &family.Add(map); });
    }
    if (row.kind == Kind::Gauge) {
      auto& family = prometheus::BuildGauge().Name(row.name).Help(row.help).Register(registry);
      return make_series(labels, [&](const auto& map, Series* s) { s->gauge = &family.Add(map); });
    }
    auto bounds = parse_buckets(row.buckets);
    auto& family = prometheus::BuildHistogram().Name(row.name).Help(row.help).Register(registry);
    return make_series(
        labels, [&](const auto& map, Series* s) { s->histogram = &family.Add(map, bounds); });
  }

  const Series& find(Metric metric, Labels labels) const {
    for (const Series& s : series[static_cast<size_t>(metric)]) {
      if (std::equal(s.values.begin(), s.values.end(), labels.begin(), labels.end())) return s;
    }
    check_failed("series exists", __FILE__, __LINE__, kRows[static_cast<size_t>(metric)].name);
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  for (const Row& row : kRows) impl_->series.push_back(impl_->build(row));
}
Metrics::~Metrics() = default;

void Metrics::add(Metric metric, double delta, Labels labels) {
  const Series& s = impl_->find(metric, labels);
  CHECK(s.counter != nullptr && delta >= 0);
  s.counter->Increment(delta);
}

void Metrics::set(Metric metric, double value, Labels labels) {
  const Series& s = impl_->find(metric, labels);
  CHECK(s.gauge != nullptr);
  s.gauge->Set(value);
}

void Metrics::observe(Metric metric, double value, Labels labels, unsigned n) {
  const Series& s = impl_->find(metric, labels);
  CHECK(s.histogram != nullptr);
  for (unsigned i = 0; i < n; ++i) s.histogram->Observe(value);
}

double Metrics::value(Metric metric, Labels labels) const {
  const Series& s = impl_->find(metric, labels);
  if (s.counter != nullptr) return s.counter->Value();
  if (s.gauge != nullptr) return s.gauge->Value();
  return static_cast<double>(s.histogram->Collect().histogram.sample_count);
}

std::string Metrics::text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace tandem
