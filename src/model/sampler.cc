// Draws a token from a row of logits. DESIGN: nothing here sorts a vocabulary. Descending order is produced
// lazily, in bands below the maximum, because a draw nearly always ends within the first few candidates; the
// result is the same as after a full sort, since order and sums are fixed.
#include "model/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "model/philox.h"

namespace tandem {
namespace {

using Candidate = std::pair<float, int32_t>;
using Row = std::span<const float>;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

bool ranks_before(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// Maximum of the row, or nothing when it holds a NaN or +inf, or only -inf. Floats are compared as integers
// of the same order: NaNs then lie beyond both infinities, and the loop needs no float reduction.
bool find_max(Row row, float* max) {
  constexpr int kLanes = 16;  // independent chains, so that the compiler can use vectors
  constexpr int32_t kKeyInf = 0x7f800000, kKeyMinusInf = static_cast<int32_t>(0x807fffff);
  const auto key = [](float x) {
    const int32_t bits = std::bit_cast<int32_t>(x);
    return bits ^ ((bits >> 31) & 0x7fffffff);
  };
  int32_t high[kLanes], low[kLanes];
  std::fill_n(high, kLanes, std::numeric_limits<int32_t>::min());
  std::fill_n(low, kLanes, std::numeric_limits<int32_t>::max());
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const int32_t k = key(row[i + j]);
      high[j] = k > high[j] ? k : high[j];
      low[j] = k < low[j] ? k : low[j];
    }
  }
  for (; i < row.size(); ++i) {
    high[0] = std::max(high[0], key(row[i]));
    low[0] = std::min(low[0], key(row[i]));
  }
  const int32_t top = *std::max_element(high, high + kLanes);
  const int32_t bottom = *std::min_element(low, low + kLanes);
  if (top >= kKeyInf || top <= kKeyMinusInf || bottom < kKeyMinusInf) return false;
  *max = std::bit_cast<float>(top ^ ((top >> 31) & 0x7fffffff));
  return true;
}

int32_t first_index_of(Row row, float value) {
  return static_cast<int32_t>(std::find(row.begin(), row.end(), value) - row.begin());
}

// The row's tokens in descending order, ties by id, sorted only as far as somebody looks.
class DescendingTokens {
 public:
  DescendingTokens(Row row, float max, std::vector<Candidate>* buffer)
      : row_(row), max_(max), above_(std::numeric_limits<float>::infinity()), buffer_(buffer) {
    buffer_->clear();
  }
  // Candidate of rank `i`, asked for in ascending order of i; nullptr past the last one above -inf.
  const Candidate* at(size_t i) {
    while (i >= n_sorted_) {
      if (n_sorted_ == buffer_->size() && !collect_band()) return nullptr;
      sort_more();
    }
    return &(*buffer_)[i];
  }

 private:
  // Appends the tokens of the next band of values, [max - width, above). False when none is left.
  bool collect_band() {
    while (above_ > kMinusInf) {
      const float from = width_ < 1e6f ? max_ - width_ : kMinusInf;
      for (size_t i = 0; i < row_.size(); ++i) {
        const float x = row_[i];
        if (x >= from && x < above_ && x > kMinusInf) {
          buffer_->emplace_back(x, static_cast<int32_t>(i));
        }
      }
      above_ = from;
      width_ *= 4;
      if (n_sorted_ < buffer_->size()) return true;
    }
    return false;
  }
  void sort_more() {
    const auto begin = buffer_->begin() + static_cast<ptrdiff_t>(n_sorted_);
    const size_t n_more = std::min(std::max<size_t>(64, n_sorted_), buffer_->size() - n_sorted_);
    const auto middle = begin + static_cast<ptrdiff_t>(n_more);
    if (middle != buffer_->end()) std::nth_element(begin, middle, buffer_->end(), ranks_before);
    std::sort(begin, middle, ranks_before);
    n_sorted_ += n_more;
  }

  Row row_;
  float max_;
  float above_;         // values from here up are in the buffer
  float width_ = 4.0f;  // e^-4 of the likeliest: holds most draws
  size_t n_sorted_ = 0;
  std::vector<Candidate>* buffer_;
};

// Visits each distinct token of the sequences once, with its number of occurrences.
template <typename Visit>
void for_each_distinct(std::initializer_list<std::span<const int32_t>> sequences, size_t vocab_size,
                       std::vector<int32_t>* counts, Visit visit) {
  counts->resize(vocab_size, 0);
  const auto is_id = [&](int32_t t) { return t >= 0 && static_cast<size_t>(t) < vocab_size; };
  for (const auto& tokens : sequences) {
    for (int32_t t : tokens) {
      if (is_id(t)) ++(*counts)[t];
    }
  }
  for (const auto& tokens : sequences) {
    for (int32_t t : tokens) {
      if (is_id(t) && (*counts)[t] > 0) visit(t, (*counts)[t]), (*counts)[t] = 0;
    }
  }
}

bool changes_logits(const SampleRequest& r) {
  const SamplingParams& p = *r.params;
  return !p.logit_bias.empty() || p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f ||
         p.frequency_penalty != 0.0f || (p.ignore_eos && !r.end_tokens.empty());
}

// The row after logit_bias, penalties and mask: `logits` itself when nothing applies.
Row adjusted_row(Row logits, const SampleRequest& r, SamplerScratch* scratch) {
  if (!changes_logits(r)) return logits;
  const SamplingParams& p = *r.params;
  std::vector<float>& x = scratch->logits;
  x.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : p.logit_bias) {
    if (token >= 0 && static_cast<size_t>(token) < x.size()) x[token] += bias;
  }
  if (p.repetition_penalty != 1.0f) {
    for_each_distinct({r.prompt, r.generated}, x.size(), &scratch->counts, [&](int32_t t, int) {
      x[t] = x[t] > 0 ? x[t] / p.repetition_penalty : x[t] * p.repetition_penalty;
    });
  }
  if (p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f) {
    for_each_distinct({r.generated}, x.size(), &scratch->counts, [&](int32_t t, int count) {
      x[t] -= p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
    });
  }
  if (p.ignore_eos) {
    for (int32_t t : r.end_tokens) {
      if (t >= 0 && static_cast<size_t>(t) < x.size()) x[t] = kMinusInf;
    }
  }
  return x;
}

// (x - max) / temperature: no overflow at any temperature, because all values are <= 0.
Row divide_by_temperature(Row row, float* max, float temperature, SamplerScratch* scratch) {
  if (temperature == 1.0f) return row;
  std::vector<float>& x = scratch->logits;
  x.resize(row.size());  // row may be x itself
  for (size_t i = 0; i < row.size(); ++i) x[i] = (row[i] - *max) / temperature;
  *max = 0.0f;
  return x;
}

struct KeptTokens {
  size_t count;  // the first `count` in descending order may be drawn
  double mass;   // their sum of exp(x - max)
};

// What top_k, min_p and top_p leave, in this order.
KeptTokens keep_tokens(const SamplingParams& p, Row row, float max, DescendingTokens* tokens,
                       double (*log_sum_exp)(const float*, int64_t)) {
  KeptTokens kept{row.size(), 0.0};
  if (p.top_k > 0 || p.min_p > 0) {
    if (p.top_k > 0) kept.count = std::min(kept.count, static_cast<size_t>(p.top_k));
    const double least = p.min_p;  // of the likeliest token's exp(0) = 1
    size_t n = 0;
    for (const Candidate* c; n < kept.count && (c = tokens->at(n)) != nullptr; ++n) {
      const double weight = std::exp(static_cast<double>(c->first) - max);
      if (weight < least) break;
      kept.mass += weight;
    }
    kept.count = n;
  } else {
    kept.mass = std::exp(log_sum_exp(row.data(), static_cast<int64_t>(row.size())) - max);
  }
  if (p.top_p < 1.0f) {
    const double wanted = kept.mass * p.top_p;
    double sum = 0;
    size_t n = 0;
    for (const Candidate* c; n < kept.count && (n == 0 || sum < wanted) && (c = tokens->at(n)); ++n) {
      sum += std::exp(static_cast<double>(c->first) - max);
    }
    kept = {n, sum};
  }
  return kept;
}

int32_t draw(Row logits, const SampleRequest& r, double (*log_sum_exp)(const float*, int64_t),
             SamplerScratch* scratch) {
  const SamplingParams& p = *r.params;
  Row row = adjusted_row(logits, r, scratch);
  float max;
  if (!find_max(row, &max)) return -1;
  if (!(p.temperature > 0)) return first_index_of(row, max);
  row = divide_by_temperature(row, &max, p.temperature, scratch);

  DescendingTokens tokens(row, max, &scratch->candidates);
  const KeptTokens kept = keep_tokens(p, row, max, &tokens, log_sum_exp);
  const double target = philox_uniform(p.seed, r.choice, r.position) * kept.mass;
  int32_t token = first_index_of(row, max);
  double sum = 0;
  for (size_t i = 0; i < kept.count; ++i) {
    const Candidate* c = tokens.at(i);
    const double weight = c ? std::exp(static_cast<double>(c->first) - max) : 0.0;
    if (weight == 0.0) break;  // rounding left `target` past the last possible token: that one is drawn
    token = c->second;
    sum += weight;
    if (sum > target) break;
  }
  return token;
}

float logprob_of(float logit, double log_sum) {
  const double value = static_cast<double>(logit) - log_sum;
  return static_cast<float>(std::clamp(value, static_cast<double>(kLowestLogprob), 0.0));
}

}  // namespace

float philox_uniform(uint64_t seed, uint32_t choice, uint32_t position) {
  const auto words = philox4x32_10({position, choice, 0, 0},
                                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<float>(words[0] >> 8) * 0x1p-24f;
}

void sample_row(std::span<const float> logits, const SampleRequest& request,
                double (*log_sum_exp)(const float*, int64_t), SamplerScratch* scratch,
                SampleResult* result) {
  result->top.clear();
  result->chosen = {-1, kLowestLogprob};
  result->token = -1;
  float max;
  if (!find_max(logits, &max)) return;
  if (request.forced_token >= 0) {
    if (static_cast<size_t>(request.forced_token) >= logits.size()) return;
    result->token = request.forced_token;
  } else {
    result->token = draw(logits, request, log_sum_exp, scratch);
  }
  if (result->token < 0 || request.n_top_logprobs < 0) return;

  const double log_sum = log_sum_exp(logits.data(), static_cast<int64_t>(logits.size()));
  result->chosen = {result->token, logprob_of(logits[result->token], log_sum)};
  DescendingTokens tokens(logits, max, &scratch->candidates);
  for (size_t i = 0; i < static_cast<size_t>(request.n_top_logprobs); ++i) {
    const Candidate* c = tokens.at(i);
    if (c == nullptr) break;
    result->top.push_back({c->second, logprob_of(c->first, log_sum)});
  }
}

}  // namespace tandem
