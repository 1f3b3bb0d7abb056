// Sampling, one block of threads a row. DESIGN: nothing sorts a vocabulary. As model/sampler.cc does, tokens are taken
// in descending order in bands below the maximum, each sorted in shared memory; one thread walks them in double
// precision, and the walk nearly always ends in the first band. A band never depends on which thread found a
// token first: it is sorted by (value, id), and no two keys are equal.
#include "kernels/device_sample.cuh"

#include "kernels/device_launch.cuh"
#include "kernels/device_math.cuh"

namespace tandem {
namespace {

constexpr int kThreads = 512;
constexpr int kBand = 1024;
constexpr float kLowestLogprob = -9999.0f;  // as model/sampler.h
constexpr uint64_t kNoBound = ~uint64_t{0};

// A row as the walk sees it: (x - max) / temperature, or x itself.
struct Row {
  const float* x;
  int n;
  float max;          // of x
  float temperature;  // 1: x itself
  TANDEM_DEVICE float at(const Row& r, int i) { return r.temperature == 1.0f ? r.x[i] : (r.x[i] - r.max) / r.temperature; }
  TANDEM_DEVICE float top(const Row& r) { return r.temperature == 1.0f ? r.max : 0.0f; }
};

struct Shared {
  uint64_t keys[kBand];
  double weights[kBand];
  double sums[kThreads / 32];
  uint64_t best[kThreads / 32];
  int counts[kThreads / 32];
  uint64_t band_low, band_high;  // keys of the band: [low, high)
  const float* band_of;          // the row it was taken from; null: none
  int n;                         // in the band
  uint32_t n_taken;
  int goes_on;
  // What thread 0 has found.
  int token;
  int64_t kept;
  double mass;
};

TANDEM_DEVICE int thread() { return static_cast<int>(threadIdx.x); }

// Descending keys are descending values, ties by ascending id.
TANDEM_DEVICE uint64_t key_of(float x, int id) {
  const uint32_t bits = __float_as_uint(x), order = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(order) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
TANDEM_DEVICE float value_of(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}
TANDEM_DEVICE int id_of(uint64_t key) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)); }
TANDEM_DEVICE uint64_t lowest_key() { return key_of(-INFINITY, 0) + 1; }  // above every key of -inf

TANDEM_DEVICE int block_sum(int x, Shared* s) {
  x = warp_sum_int(x);
  if (lane_of_thread() == 0) s->counts[warp_of_thread()] = x;
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += s->counts[i];
  __syncthreads();
  return sum;
}

// The best key of a row, 0 if it holds a NaN or +inf, or only -inf.
TANDEM_DEVICE uint64_t best_key(const float* x, int n, Shared* s) {
  uint64_t best = 0;
  int n_bad = 0;
  for (int i = thread(); i < n; i += kThreads) {
    n_bad += !(x[i] < INFINITY);
    const uint64_t key = key_of(x[i], i);
    best = key > best ? key : best;
  }
  if (block_sum(n_bad, s) > 0) return 0;
  for (int i = 16; i > 0; i /= 2) {
    const uint64_t other = static_cast<uint64_t>(__shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(best >> 32), i)) << 32 |
                           __shfl_xor_sync(kWholeWarp, static_cast<uint32_t>(best), i);
    best = other > best ? other : best;
  }
  if (lane_of_thread() == 0) s->best[warp_of_thread()] = best;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) best = s->best[i] > best ? s->best[i] : best;
  __syncthreads();
  return best >= lowest_key() ? best : 0;
}

// Sum of exp(value - top) over the row, order fixed.
TANDEM_DEVICE double mass_of(const Row& r, Shared* s) {
  float sum = 0, lost = 0;  // compensated: a thread adds hundreds of terms (Kahan 1965)
  const float top = Row::top(r);
  for (int i = thread(); i < r.n; i += kThreads) {
    const float y = expf(Row::at(r, i) - top) - lost, t = sum + y;
    lost = (t - sum) - y;
    sum = t;
  }
  const float warp = warp_sum(sum);
  if (lane_of_thread() == 0) s->sums[warp_of_thread()] = static_cast<double>(warp);
  __syncthreads();
  double total = 0;
  for (int i = 0; i < kThreads / 32; ++i) total += s->sums[i];
  __syncthreads();
  return total;
}

TANDEM_DEVICE int count_keys(const Row& r, uint64_t low, uint64_t high, Shared* s) {
  int n = 0;
  for (int i = thread(); i < r.n; i += kThreads) {
    const uint64_t key = key_of(Row::at(r, i), i);
    n += key >= low && key < high;
  }
  return block_sum(n, s);
}

// Sorts the band's keys, descending (Batcher 1968: bitonic).
TANDEM_DEVICE void sort_band(int n, Shared* s) {
  int size = 1;
  while (size < n) size *= 2;
  for (int i = n + thread(); i < size; i += kThreads) s->keys[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = thread(); i < size / 2; i += kThreads) {
        const int a = 2 * step * (i / step) + i % step, b = a + step;
        const uint64_t x = s->keys[a], y = s->keys[b];
        if ((x < y) == ((a & run) == 0)) s->keys[a] = y, s->keys[b] = x;
      }
      __syncthreads();
    }
  }
}

// The tokens next below `high`: at least one and at most kBand of them, sorted, with exp(value - top). False when
// none above -inf is left.
TANDEM_DEVICE bool load_band(const Row& r, uint64_t high, Shared* s) {
  const bool is_loaded = s->band_of == r.x && s->band_high == high;
  const int n_loaded = s->n;
  __syncthreads();  // before thread 0 changes them
  if (is_loaded) return n_loaded > 0;
  const float top = Row::top(r);
  uint64_t low = lowest_key();
  int n = 0;
  for (float width = 4.0f; n == 0; width *= 4) {  // e^-4 of the likeliest: holds most draws
    low = width < 1e6f ? key_of(top - width, r.n) : lowest_key();
    low = low > lowest_key() ? low : lowest_key();
    if (low < high) n = count_keys(r, low, high, s);
    if (low == lowest_key()) break;
  }
  for (uint64_t empty = high; n > kBand;) {  // keys below `low` are too many, from `empty` on there are none
    const uint64_t middle = low + (empty - low) / 2;
    const int above = count_keys(r, middle, high, s);
    if (above == 0) {
      empty = middle;
    } else {
      low = middle;
      n = above;
    }
  }
  if (thread() == 0) {
    s->n_taken = 0;
    s->n = n;
    s->band_low = low;
    s->band_high = high;
    s->band_of = r.x;
  }
  __syncthreads();
  if (n == 0) return false;
  for (int i = thread(); i < r.n; i += kThreads) {
    const uint64_t key = key_of(Row::at(r, i), i);
    if (key >= low && key < high) s->keys[atomicAdd(&s->n_taken, 1u)] = key;
  }
  __syncthreads();
  sort_band(n, s);
  for (int i = thread(); i < n; i += kThreads) {
    s->weights[i] = exp(static_cast<double>(value_of(s->keys[i])) - static_cast<double>(top));
  }
  __syncthreads();
  return true;
}

// Thread 0 calls step(weight, key) for the tokens in descending order until it says false.
template <typename Step>
TANDEM_DEVICE void walk(const Row& r, Shared* s, Step step) {
  uint64_t high = kNoBound;
  while (load_band(r, high, s)) {
    if (thread() == 0) {
      bool goes_on = true;
      for (int i = 0; goes_on && i < s->n; ++i) goes_on = step(s->weights[i], s->keys[i]);
      s->goes_on = goes_on;
    }
    __syncthreads();
    high = s->band_low;
    const bool goes_on = s->goes_on != 0;
    __syncthreads();
    if (!goes_on) return;
  }
}

TANDEM_DEVICE float philox_uniform(uint64_t seed, uint32_t choice, uint32_t position) {
  uint32_t c0 = position, c1 = choice, c2 = 0, c3 = 0;
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    const auto n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<float>(c0 >> 8) * 0x1p-24f;
}

// --- bias and penalties ----------------------------------------------------------------------------

TANDEM_DEVICE bool has_penalty(const DeviceSampleRow& p) {
  return p.repetition_penalty != 1.0f || p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f;
}

// Calls visit(token, count) once for each distinct token of history [begin, end). Ends with a barrier.
template <typename Visit>
TANDEM_DEVICE void for_each_distinct(const int32_t* history, int begin, int end, int vocab, uint32_t* counts, Visit visit) {
  const auto is_id = [vocab](int32_t t) { return t >= 0 && t < vocab; };
  for (int i = begin + thread(); i < end; i += kThreads) {
    if (is_id(history[i])) atomicAdd(counts + history[i], 1u);
  }
  __syncthreads();
  for (int i = begin + thread(); i < end; i += kThreads) {
    if (!is_id(history[i])) continue;
    const uint32_t count = atomicExch(counts + history[i], 0u);
    if (count > 0) visit(history[i], count);
  }
  __syncthreads();
}

// x[token] += its biases, in their order.
TANDEM_DEVICE void add_biases(const DeviceSampleRow& p, int vocab, float* x) {
  for (int i = thread(); i < p.n_bias; i += kThreads) {
    const int32_t token = p.bias_tokens[i];
    bool is_first = token >= 0 && token < vocab;
    for (int j = 0; is_first && j < i; ++j) is_first = p.bias_tokens[j] != token;
    if (!is_first) continue;
    float sum = x[token];
    for (int j = i; j < p.n_bias; ++j) {
      if (p.bias_tokens[j] == token) sum += p.bias_values[j];
    }
    x[token] = sum;
  }
  __syncthreads();
}

// The row after bias, penalties and mask in `x`. n_history: tokens known.
TANDEM_DEVICE void adjust(const DeviceSampleRow& p, const float* logits, int vocab, int n_history, uint32_t* counts, float* x) {
  for (int i = thread(); i < vocab; i += kThreads) x[i] = logits[i];
  __syncthreads();
  add_biases(p, vocab, x);
  if (has_penalty(p) && p.history) {
    const int end = min(n_history, p.history_capacity);
    if (p.repetition_penalty != 1.0f) {
      for_each_distinct(p.history, 0, end, vocab, counts, [&](int32_t t, uint32_t) {
        x[t] = x[t] > 0 ? x[t] / p.repetition_penalty : x[t] * p.repetition_penalty;
      });
    }
    for_each_distinct(p.history, min(p.n_prompt, end), end, vocab, counts, [&](int32_t t, uint32_t count) {
      x[t] -= p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
    });
  }
  for (int i = thread(); i < p.n_masked; i += kThreads) {
    const int32_t t = p.masked_tokens[i];
    if (t >= 0 && t < vocab) x[t] = -INFINITY;
  }
  __syncthreads();
}

// --- the draw --------------------------------------------------------------------------------------

// best: the row's best key.
TANDEM_DEVICE int draw(const DeviceSampleRow& p, const float* x, int vocab, uint64_t best, uint32_t position, Shared* s) {
  if (best == 0) return -1;
  if (!(p.temperature > 0)) return id_of(best);
  const Row row = {x, vocab, value_of(best), p.temperature};

  // What top_k, min_p and top_p leave: so many of the likeliest, and their mass.
  if (thread() == 0) s->kept = vocab, s->token = id_of(best);
  if (p.top_k > 0 || p.min_p > 0) {
    const int64_t most = p.top_k > 0 && p.top_k < vocab ? p.top_k : vocab;
    int64_t n = 0;
    double mass = 0;
    walk(row, s, [&](double weight, uint64_t) {
      if (weight < static_cast<double>(p.min_p)) return false;
      mass += weight;
      return ++n < most;
    });
    if (thread() == 0) s->kept = n, s->mass = mass;
  } else {
    const double mass = mass_of(row, s);
    if (thread() == 0) s->mass = mass;
  }
  if (p.top_p < 1.0f) {
    int64_t n = 0;
    double sum = 0, wanted = thread() == 0 ? s->mass * static_cast<double>(p.top_p) : 0;
    walk(row, s, [&](double weight, uint64_t) {
      if (n >= s->kept || (n > 0 && sum >= wanted)) return false;
      sum += weight;
      ++n;
      return true;
    });
    if (thread() == 0) s->kept = n, s->mass = sum;
  }
  int64_t n = 0;
  double sum = 0;
  const double target = thread() == 0 ? static_cast<double>(philox_uniform(p.seed, p.choice, position)) * s->mass : 0;
  walk(row, s, [&](double weight, uint64_t key) {
    if (n++ >= s->kept || weight == 0.0) return false;
    s->token = id_of(key);
    sum += weight;
    return !(sum > target);
  });
  __syncthreads();
  return s->token;
}

TANDEM_DEVICE float logprob_of(float logit, double log_sum) {
  const auto value = static_cast<float>(static_cast<double>(logit) - log_sum);
  return fminf(fmaxf(value, kLowestLogprob), 0.0f);
}

// Log-probabilities of the model's own distribution.
TANDEM_DEVICE void find_logprobs(const DeviceSampleRow& p, const Row& row, int token, Shared* s, DeviceSampleResult* out) {
  const double log_sum = static_cast<double>(row.max) + log(mass_of(row, s));
  int n = 0;
  const int wanted = min(p.n_top_logprobs, kDeviceTopLogprobs);
  if (wanted > 0) {
    walk(row, s, [&](double, uint64_t key) {
      out->top_tokens[n] = id_of(key);
      out->top_logprobs[n] = logprob_of(value_of(key), log_sum);
      return ++n < wanted;
    });
  }
  if (thread() == 0) {
    out->n_top = n;
    out->logprob = logprob_of(row.x[token], log_sum);
  }
}

__global__ void __launch_bounds__(kThreads, 1) sample_kernel(const SampleParams params) {
  __shared__ Shared s;
  const int64_t m = blockIdx.x;
  const int pos = params.positions[m], vocab = params.vocab_size;
  if (pos < 0) return;
  const DeviceSampleRow p = params.rows[m];
  const float* logits = params.logits + m * params.logits_stride;
  DeviceSampleResult* out = params.results + m;
  if (thread() == 0) s.band_of = nullptr;
  __syncthreads();

  const uint64_t best = best_key(logits, vocab, &s);
  int token = -1;
  if (best != 0 && p.forced_token >= 0) {
    token = p.forced_token < vocab ? p.forced_token : -1;
  } else if (best != 0) {
    const float* x = logits;
    uint64_t best_left = best;
    if (p.n_bias > 0 || p.n_masked > 0 || has_penalty(p)) {
      float* adjusted = params.adjusted + m * vocab;
      adjust(p, logits, vocab, pos + 1, params.counts + m * vocab, adjusted);
      x = adjusted;
      best_left = best_key(x, vocab, &s);
    }
    token = draw(p, x, vocab, best_left, static_cast<uint32_t>(pos) + 1, &s);
  }
  if (thread() == 0) out->n_top = 0, out->logprob = kLowestLogprob;
  if (token >= 0 && p.n_top_logprobs >= 0) {
    if (thread() == 0) s.band_of = nullptr;  // what was drawn from has a temperature
    __syncthreads();
    find_logprobs(p, Row{logits, vocab, value_of(best), 1.0f}, token, &s, out);
  }
  if (thread() != 0) return;
  out->token = token;
  if (params.next_tokens) params.next_tokens[m] = token;
  if (p.history && token >= 0 && pos + 1 < p.history_capacity) p.history[pos + 1] = token;
  if (params.advance) params.positions[m] = pos + 1;
}

}  // namespace

cudaError_t launch_sample(const SampleParams& p, cudaStream_t stream) {
  if (!p.logits || !p.rows || !p.positions || !p.results || !p.adjusted || !p.counts || p.n_rows < 1 ||
      p.vocab_size < 1 || p.logits_stride < p.vocab_size) {
    return cudaErrorInvalidValue;
  }
  return launch_kernel(sample_kernel, dim3(static_cast<unsigned>(p.n_rows)), kThreads, stream, p);
}

}  // namespace tandem
