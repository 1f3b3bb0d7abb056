// Flash-decoding over pages. One block of threads: one row, the heads of one KV head (at most
// kAttentionHeadsAtOnce), one part of kAttentionPartKeys positions. DESIGN
// - K of a page is [head_dim][slots]: neighbouring threads take neighbouring slots, so a sector is read whole and a
//   score is one thread's own sum over head_dim, in ascending order (q8_0: even and odd, added at the end).
// - V is [slots][head_dim]: a thread takes 8 values of every n-th key; the n sums of a value join in a fixed tree.
// - The new token's k and v are stored by the block that has their part, before it reads the page.
// The order of all sums depends on position, head_dim, page size and window alone.
#include "kernels/paged_attention.cuh"

#include "kernels/device_launch.cuh"
#include "kernels/device_make_acts.cuh"
#include "kernels/kv_layout.h"

namespace tandem {
namespace {

constexpr int kThreads = 128;
constexpr int kPart = kAttentionPartKeys;
constexpr int kHeads = kAttentionHeadsAtOnce;
constexpr int kMostDim = 512;
constexpr int kMostPages = kPart / 16;

// PagedAttentionParams with what the host has worked out.
struct Args {
  PagedAttentionParams p;
  int64_t head_bytes;  // K or V of one head in a page
  int group, n_chunks; // heads per KV head; blocks of threads they take
  int64_t record_floats;
};

template <int kScales>
struct SharedOf {
  alignas(16) float wide[kHeads * kMostDim];  // read by float4: q, then sums of V on their way down the tree, then results
  float scores[kHeads * kPart];   // before that: k and v of the new token
  float max[kHeads], sum[kHeads];
  int32_t pages[kMostPages];
  uint32_t is_last;
  uint16_t v_scales[kScales];  // q8_0: [pages][head_dim / 32][page_size]
};

template <KvType kType>
using Shared = SharedOf<kType == KvType::kQ8_0 ? kPart * kMostDim / 32 : 1>;

TANDEM_DEVICE int thread() { return static_cast<int>(threadIdx.x); }

TANDEM_DEVICE int first_key(int pos, int window) { return window > 0 && pos >= window ? pos - window + 1 : 0; }

TANDEM_DEVICE uint8_t* page_of(const Args& a, int32_t page) { return a.p.pool + page * static_cast<int64_t>(a.p.layout.page_bytes); }
TANDEM_DEVICE uint8_t* k_of(const Args& a, int32_t page, int kv_head) {
  return page_of(a, page) + a.p.layout.layer_offset + kv_head * a.head_bytes;
}
TANDEM_DEVICE uint8_t* v_of(const Args& a, int32_t page, int kv_head) {
  return k_of(a, page, kv_head) + a.p.layout.n_kv_heads * a.head_bytes;
}
TANDEM_DEVICE const int32_t* table_of(const Args& a, int m) {
  return a.p.page_tables + (a.p.table_of ? a.p.table_of[m] : m) * a.p.table_stride;
}

// Norm (if any) of one head in shared memory, by one warp.
TANDEM_DEVICE void norm_head(const Args& a, const float* weight, float* x) {
  const int n = a.p.layout.head_dim;
  float sum = 0;
  for (int d = lane_of_thread(); d < n; d += 32) sum += x[d] * x[d];
  const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(n) + a.p.norm_eps);
  for (int d = lane_of_thread(); d < n; d += 32) x[d] = x[d] * scale * weight[d];
}

// Rotates n heads in shared memory, all threads together.
TANDEM_DEVICE void rotate_heads(const Args& a, int m, int n_heads, float* x) {
  const int half = a.p.rope_dim / 2;
  const float* cos_sin = a.p.cos_sin + m * a.p.cos_sin_stride;
  for (int i = thread(); i < n_heads * half; i += kThreads) {
    const int pair = i % half;
    float* head = x + i / half * a.p.layout.head_dim;
    float* first = head + (a.p.neox ? pair : 2 * pair);
    float* second = head + (a.p.neox ? pair + half : 2 * pair + 1);
    const float c = cos_sin[2 * pair], s = cos_sin[2 * pair + 1], u = *first, v = *second;
    *first = u * c - v * s;
    *second = u * s + v * c;
  }
}

// n heads from global to shared memory, normed and rotated. Ends with a barrier.
TANDEM_DEVICE void load_heads(const Args& a, int m, const float* from, int n_heads, const float* norm, float* x) {
  const int D = a.p.layout.head_dim;
  for (int i = thread(); i < n_heads * D; i += kThreads) x[i] = from[i];
  __syncthreads();
  if (norm) {
    for (int h = warp_of_thread(); h < n_heads; h += kThreads / 32) norm_head(a, norm, x + h * D);
    __syncthreads();
  }
  if (a.p.rope_dim > 0) {
    rotate_heads(a, m, n_heads, x);
    __syncthreads();
  }
}

// 32 values (fewer at the end of a head) as int8 with one scale, as put_q8 of the reference does; one warp.
TANDEM_DEVICE void store_q8(const float* x, int n, uint8_t* values, int stride, uint16_t* scale_out) {
  const int lane = lane_of_thread();
  const float value = lane < n ? x[lane] : 0.0f;
  const uint16_t scale = float_to_half_bits(warp_max(fabsf(value)) / 127.0f);
  const float stored = half_bits_to_float(scale);
  const float inverse = stored > 0 && isfinite(stored) ? 1.0f / stored : 0.0f;
  float q = rintf(value * inverse);
  q = q > 127.0f ? 127.0f : q > -127.0f ? q : -127.0f;
  if (lane < n) values[lane * stride] = static_cast<uint8_t>(static_cast<int8_t>(q));
  if (lane == 0) *scale_out = scale;
}

// k and v of row m into their page. scratch: 2 * head_dim floats of shared memory.
template <KvType kType>
TANDEM_DEVICE void append(const Args& a, int m, int kv_head, int pos, float* scratch) {
  const int D = a.p.layout.head_dim, P = a.p.layout.page_size, slot = pos % P;
  const int32_t page = table_of(a, m)[pos / P];
  const int64_t from = m * a.p.kv_stride + static_cast<int64_t>(kv_head) * D;
  float* v = scratch + D;
  for (int d = thread(); d < D; d += kThreads) v[d] = a.p.v[from + d];
  load_heads(a, m, a.p.k + from, 1, a.p.k_norm, scratch);
  uint8_t* k_out = k_of(a, page, kv_head);
  uint8_t* v_out = v_of(a, page, kv_head);
  if constexpr (kType == KvType::kF16) {
    for (int d = thread(); d < D; d += kThreads) {
      reinterpret_cast<uint16_t*>(k_out)[d * P + slot] = float_to_half_bits(scratch[d]);
      reinterpret_cast<uint16_t*>(v_out)[slot * D + d] = float_to_half_bits(v[d]);
    }
  } else {
    uint16_t* k_scales = reinterpret_cast<uint16_t*>(k_out + D * P);
    uint16_t* v_scales = reinterpret_cast<uint16_t*>(v_out + D * P);
    const int n_blocks = (D + 31) / 32;
    for (int i = warp_of_thread(); i < 2 * n_blocks; i += kThreads / 32) {
      const int b = i / 2, n = min(32, D - 32 * b);
      if (i % 2 == 0) {
        store_q8(scratch + 32 * b, n, k_out + 32 * b * P + slot, P, k_scales + b * P + slot);
      } else {
        store_q8(v + 32 * b, n, v_out + slot * D + 32 * b, 1, v_scales + b * P + slot);
      }
    }
  }
  __syncthreads();
}

// Two slots of every thread, f16. key: the thread's first key in the part.
TANDEM_DEVICE void scores_f16(const Args& a, int kv_head, int n_heads, int begin, int end, Shared<KvType::kF16>* s) {
  const int D = a.p.layout.head_dim, P = a.p.layout.page_size, width = P / 2;
  const int page = thread() / width, slot = 2 * (thread() % width), key = page * P + slot;
  float acc[kHeads][2] = {};
  if (page * P < end && (page + 1) * P > begin) {
    const uint8_t* k = k_of(a, s->pages[page], kv_head) + 2 * slot;
    for (int d = 0; d < D; d += 8) {
      uint32_t x[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) x[j] = *reinterpret_cast<const uint32_t*>(k + 2 * (d + j) * P);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h >= n_heads) break;
        const float4* q4 = reinterpret_cast<const float4*>(s->wide + h * D + d);
        const float4 q0 = q4[0], q1 = q4[1];
        const float q[8] = {q0.x, q0.y, q0.z, q0.w, q1.x, q1.y, q1.z, q1.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          acc[h][0] = fmaf(q[j], half_bits_to_float(static_cast<uint16_t>(x[j] & 0xffff)), acc[h][0]);
          acc[h][1] = fmaf(q[j], half_bits_to_float(static_cast<uint16_t>(x[j] >> 16)), acc[h][1]);
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= n_heads) break;
    s->scores[h * kPart + key] = acc[h][0];
    s->scores[h * kPart + key + 1] = acc[h][1];
  }
}

// Four slots and half of head_dim of every thread, q8_0.
TANDEM_DEVICE void scores_q8(const Args& a, int kv_head, int n_heads, int begin, int end, Shared<KvType::kQ8_0>* s) {
  const int D = a.p.layout.head_dim, P = a.p.layout.page_size, width = P / 4;
  const int page = thread() / (2 * width), odd = thread() / width % 2, slot = 4 * (thread() % width);
  const int key = page * P + slot;
  float acc[kHeads][4] = {};
  if (page * P < end && (page + 1) * P > begin) {
    const uint8_t* k = k_of(a, s->pages[page], kv_head);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(k + D * P) + slot;
    for (int b = 0; b < D; b += 32) {
      const uint2 two = *reinterpret_cast<const uint2*>(scales + b / 32 * P);
      const float scale[4] = {half_bits_to_float(static_cast<uint16_t>(two.x & 0xffff)),
                              half_bits_to_float(static_cast<uint16_t>(two.x >> 16)),
                              half_bits_to_float(static_cast<uint16_t>(two.y & 0xffff)),
                              half_bits_to_float(static_cast<uint16_t>(two.y >> 16))};
      const int last = min(D, b + 32);
      float part[kHeads][4] = {};
      for (int d = b + odd; d < last; d += 8) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = *reinterpret_cast<const uint32_t*>(k + (d + 2 * j) * P + slot);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          if (h >= n_heads) break;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float q = s->wide[h * D + d + 2 * j];
#pragma unroll
            for (int t = 0; t < 4; ++t) {
              const auto level = static_cast<int8_t>(x[j] >> (8 * t) & 0xff);
              part[h][t] = fmaf(q, static_cast<float>(level), part[h][t]);
            }
          }
        }
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int t = 0; t < 4; ++t) acc[h][t] = fmaf(part[h][t], scale[t], acc[h][t]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h >= n_heads) break;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float both = acc[h][t] + __shfl_xor_sync(kWholeWarp, acc[h][t], width);
      if (!odd) s->scores[h * kPart + key + t] = both;
    }
  }
}

// Scores to weights 2^(score - max), max and sum, of the keys [begin, end) of the part; one warp a head.
template <typename S>
TANDEM_DEVICE void weigh(const Args& a, int n_heads, int begin, int end, S* s) {
  for (int h = warp_of_thread(); h < n_heads; h += kThreads / 32) {
    float* scores = s->scores + h * kPart;
    float max = -INFINITY;
    for (int key = lane_of_thread(); key < kPart; key += 32) {
      float x = scores[key] * a.p.scale;
      if (a.p.softcap > 0) x = a.p.softcap * tanhf(x / a.p.softcap);
      x = key >= begin && key < end ? x * 1.44269504088896340736f : -INFINITY;
      scores[key] = x;
      max = fmaxf(max, x);
    }
    max = warp_max(max);
    float sum = 0;
    for (int key = lane_of_thread(); key < kPart; key += 32) {
      const float weight = exp2f(scores[key] - max);
      scores[key] = weight;
      sum += weight;
    }
    sum = warp_sum(sum);
    if (lane_of_thread() == 0) s->max[h] = max, s->sum[h] = sum;
  }
}

// q8_0: the scales of the part's values, page by page as they lie.
TANDEM_DEVICE void load_v_scales(const Args& a, int kv_head, int end, Shared<KvType::kQ8_0>* s) {
  const int D = a.p.layout.head_dim, P = a.p.layout.page_size, n = (D + 31) / 32 * P;  // of a page
  for (int i = 2 * thread(); i < (end + P - 1) / P * n; i += 2 * kThreads) {
    if (s->pages[i / n] < 0) continue;
    const uint8_t* scales = v_of(a, s->pages[i / n], kv_head) + D * P;
    const uint32_t two = *reinterpret_cast<const uint32_t*>(scales + 2 * (i % n));
    s->v_scales[i] = static_cast<uint16_t>(two & 0xffff);
    s->v_scales[i + 1] = static_cast<uint16_t>(two >> 16);
  }
}

// Values d ... d + 7 of the part's key.
template <KvType kType>
TANDEM_DEVICE void load_v(const Args& a, const Shared<kType>& s, int kv_head, int key, int d, float out[8]) {
  const int page = key / a.p.layout.page_size, slot = key % a.p.layout.page_size;
  const uint8_t* v = v_of(a, s.pages[page], kv_head);
  const int D = a.p.layout.head_dim;
  if constexpr (kType == KvType::kF16) {
    const uint4 x = *reinterpret_cast<const uint4*>(v + 2 * (slot * D + d));
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[2 * j] = half_bits_to_float(static_cast<uint16_t>(words[j] & 0xffff));
      out[2 * j + 1] = half_bits_to_float(static_cast<uint16_t>(words[j] >> 16));
    }
  } else {
    const int P = a.p.layout.page_size;
    const uint2 x = *reinterpret_cast<const uint2*>(v + slot * D + d);
    const float scale = half_bits_to_float(s.v_scales[(page * ((D + 31) / 32) + d / 32) * P + slot]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto level = static_cast<int8_t>((j < 4 ? x.x : x.y) >> (8 * (j % 4)) & 0xff);
      out[j] = scale * static_cast<float>(level);
    }
  }
}

// Weighted values of the part into s->wide [n_heads][head_dim]. Ends with a barrier.
template <KvType kType>
TANDEM_DEVICE void add_values(const Args& a, int kv_head, int n_heads, int begin, int end, Shared<kType>* s) {
  const int D = a.p.layout.head_dim;
  const int width = D / 8, n_teams = min(kThreads / width, kPart), team = thread() / width, d = 8 * (thread() % width);
  float acc[kHeads][8] = {};
  if (team < n_teams) {
    for (int key = begin + (team + n_teams - begin % n_teams) % n_teams; key < end; key += n_teams) {
      float v[8];
      load_v<kType>(a, *s, kv_head, key, d, v);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h >= n_heads) break;
        const float weight = s->scores[h * kPart + key];
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[h][j] = fmaf(weight, v[j], acc[h][j]);
      }
    }
  }
  // The upper half of the teams hand their sums to the lower half, until one is left. At most 64 threads write.
  constexpr int kWriters = kThreads / 2;
  for (int n = n_teams; n > 1; n = (n + 1) / 2) {
    const int kept = (n + 1) / 2;
    __syncthreads();
    if (team >= kept && team < n) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h >= n_heads) break;
#pragma unroll
        for (int j = 0; j < 8; ++j) s->wide[(8 * h + j) * kWriters + thread() - kept * width] = acc[h][j];
      }
    }
    __syncthreads();
    if (team + kept < n) {
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h >= n_heads) break;
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[h][j] += s->wide[(8 * h + j) * kWriters + thread()];
      }
    }
  }
  __syncthreads();
  if (team == 0) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h >= n_heads) break;
#pragma unroll
      for (int j = 0; j < 8; ++j) s->wide[h * D + d + j] = acc[h][j];
    }
  }
  __syncthreads();
}

// Leaves the part's record; true for the block of threads that comes last: it sees all of them.
template <typename S>
TANDEM_DEVICE bool leave_record(const Args& a, int m, int head, int part, int n_parts, int n_heads, S* s) {
  const int D = a.p.layout.head_dim;
  const auto record = [&](int h) {
    const int64_t index = (static_cast<int64_t>(m) * a.p.n_heads + head + h) * a.p.max_parts + part;
    return a.p.records + index * a.record_floats;
  };
  for (int i = thread(); i < n_heads * D; i += kThreads) store_for_others(record(i / D) + i % D, s->wide[i]);
  if (thread() < n_heads) {
    store_for_others(record(thread()) + D, s->max[thread()]);
    store_for_others(record(thread()) + D + 1, s->sum[thread()]);
  }
  __threadfence();
  __syncthreads();
  if (thread() == 0) {
    uint32_t* arrivals = a.p.arrivals + m * gridDim.y + blockIdx.y;
    const uint32_t before = atomicAdd(arrivals, 1u);
    s->is_last = before + 1 == static_cast<uint32_t>(n_parts);
    if (s->is_last) atomicExch(arrivals, 0u);
    __threadfence();
  }
  __syncthreads();
  return s->is_last != 0;
}

// All parts' records of the heads into s->wide, s->sum.
template <typename S>
TANDEM_DEVICE void join_records(const Args& a, int m, int head, int n_parts, int n_heads, S* s) {
  const int D = a.p.layout.head_dim;
  const auto records = [&](int h) {
    return a.p.records + (static_cast<int64_t>(m) * a.p.n_heads + head + h) * a.p.max_parts * a.record_floats;
  };
  if (thread() < n_heads) {
    const float* r = records(thread());
    float max = -INFINITY, sum = 0;
    for (int i = 0; i < n_parts; ++i) max = fmaxf(max, load_from_others(r + i * a.record_floats + D));
    for (int i = 0; i < n_parts; ++i) {
      const float* part = r + i * a.record_floats + D;
      sum = fmaf(load_from_others(part + 1), exp2f(load_from_others(part) - max), sum);
    }
    s->max[thread()] = max;
    s->sum[thread()] = sum;
  }
  __syncthreads();
  for (int j = thread(); j < n_heads * D; j += kThreads) {
    const int h = j / D;
    const float* r = records(h);
    float sum = 0;
    for (int i = 0; i < n_parts; ++i) {
      const float* part = r + i * a.record_floats;
      sum = fmaf(load_from_others(part + j % D), exp2f(load_from_others(part + D) - s->max[h]), sum);
    }
    s->wide[j] = sum;
  }
  __syncthreads();
}

// s->wide / s->sum as the activations of the next product.
template <typename S>
TANDEM_DEVICE void store_results(const Args& a, int m, int head, int n_heads, const S& s) {
  const int D = a.p.layout.head_dim;
  const int64_t first = static_cast<int64_t>(head) * D;
  if (!a.p.out.blocks) {
    float* out = a.p.out.floats + m * a.p.out.n_cols + first;
    for (int i = thread(); i < n_heads * D; i += kThreads) out[i] = s.wide[i] / s.sum[i / D];
    return;
  }
  for (int b = warp_of_thread(); b < n_heads * D / QK; b += kThreads / 32) {
    const int i = b * QK + lane_of_thread();
    const float x = s.wide[i] / s.sum[i / D];
    store_acts(a.p.out, m, first / QK + b, x, x);
  }
}

// Grid: x = parts, y = KV heads times chunks of their heads, z = rows.
template <KvType kType>
__global__ void __launch_bounds__(kThreads) attention_kernel(const Args a) {
  __shared__ Shared<kType> s;
  const int m = static_cast<int>(blockIdx.z), pos = a.p.positions[m];
  if (pos < 0) return;
  const int first = first_key(pos, a.p.window), first_part = first / kPart;
  const int n_parts = pos / kPart + 1 - first_part, part = static_cast<int>(blockIdx.x);
  if (part >= n_parts) return;
  const int base = (first_part + part) * kPart;
  const int begin = max(first - base, 0), end = min(pos + 1 - base, kPart);

  const int chunk = static_cast<int>(blockIdx.y) % a.n_chunks, kv_head = static_cast<int>(blockIdx.y) / a.n_chunks;
  const int head = kv_head * a.group + chunk * kHeads, n_heads = min(a.group - chunk * kHeads, kHeads);
  const int D = a.p.layout.head_dim, P = a.p.layout.page_size;
  for (int i = thread(); i < kPart / P; i += kThreads) {
    const bool is_seen = i * P < end && (i + 1) * P > begin;
    s.pages[i] = is_seen ? table_of(a, m)[base / P + i] : -1;
  }
  if (a.p.append && part == n_parts - 1) append<kType>(a, m, kv_head, pos, s.scores);
  load_heads(a, m, a.p.q + m * a.p.q_stride + static_cast<int64_t>(head) * D, n_heads, a.p.q_norm, s.wide);

  if constexpr (kType == KvType::kF16) {
    scores_f16(a, kv_head, n_heads, begin, end, &s);
  } else {
    load_v_scales(a, kv_head, end, &s);
    scores_q8(a, kv_head, n_heads, begin, end, &s);
  }
  __syncthreads();
  weigh(a, n_heads, begin, end, &s);
  __syncthreads();
  add_values<kType>(a, kv_head, n_heads, begin, end, &s);
  if (n_parts > 1) {
    if (!leave_record(a, m, head, part, n_parts, n_heads, &s)) return;
    join_records(a, m, head, n_parts, n_heads, &s);
  }
  store_results(a, m, head, n_heads, s);
}

// Grid: x = KV heads, y = rows.
template <KvType kType>
__global__ void __launch_bounds__(kThreads) kv_append_kernel(const Args a) {
  __shared__ float scratch[2 * kMostDim];
  const int m = static_cast<int>(blockIdx.y), pos = a.p.positions[m];
  if (pos < 0) return;
  append<kType>(a, m, static_cast<int>(blockIdx.x), pos, scratch);
}

int heads_of_group(const PagedAttentionParams& p) {
  return p.layout.n_kv_heads > 0 ? p.n_heads / p.layout.n_kv_heads : 0;
}
int chunks_of_group(const PagedAttentionParams& p) { return (heads_of_group(p) + kHeads - 1) / kHeads; }

bool is_aligned(const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

// What both launches need of the layout and the rows.
bool is_layout_good(const PagedAttentionParams& p) {
  const KvLayout& l = p.layout;
  return (l.type == KvType::kF16 || l.type == KvType::kQ8_0) && (l.page_size == 16 || l.page_size == 32) &&
         l.n_kv_heads > 0 && l.head_dim >= 8 && l.head_dim <= kMostDim && l.head_dim % 8 == 0 &&
         l.page_bytes % 64 == 0 && l.layer_offset % 64 == 0 && p.pool && is_aligned(p.pool, 64) && p.page_tables &&
         p.positions && p.n_rows > 0 && p.table_stride > 0 && p.rope_dim >= 0 && p.rope_dim <= l.head_dim &&
         p.rope_dim % 2 == 0 && (p.rope_dim == 0 || p.cos_sin);
}

bool is_good(const PagedAttentionParams& p) {
  if (!is_layout_good(p)) return false;
  const KvLayout& l = p.layout;
  if (p.n_heads <= 0 || p.n_heads % l.n_kv_heads != 0 || p.max_parts < 1 || p.max_parts > 1 << 20 || !p.q) return false;
  if (p.q_stride < int64_t{p.n_heads} * l.head_dim || p.window < 0 || p.n_rows > 65535) return false;
  if (p.max_parts > 1 && (!p.records || !p.arrivals)) return false;
  if (p.out.n_cols != int64_t{p.n_heads} * l.head_dim || p.out.sum_squares) return false;
  if (p.out.blocks ? !attention_may_quantize(p) || !is_aligned(p.out.blocks, 64) : !p.out.floats) return false;
  return !p.append || (attention_may_append(p) && p.k && p.v && p.kv_stride >= int64_t{l.n_kv_heads} * l.head_dim);
}

Args args_of(const PagedAttentionParams& p) {
  Args a = {};
  a.p = p;
  a.head_bytes = static_cast<int64_t>(kv_head_bytes(p.layout));
  a.group = heads_of_group(p);
  a.n_chunks = chunks_of_group(p);
  a.record_floats = attention_record_floats(p.layout.head_dim);
  return a;
}

}  // namespace

size_t attention_record_bytes(const PagedAttentionParams& p) {
  return static_cast<size_t>(p.n_rows) * static_cast<size_t>(p.n_heads) * static_cast<size_t>(p.max_parts) *
         static_cast<size_t>(attention_record_floats(p.layout.head_dim)) * sizeof(float);
}

size_t attention_arrival_bytes(const PagedAttentionParams& p) {
  return static_cast<size_t>(p.n_rows) * static_cast<size_t>(p.layout.n_kv_heads) *
         static_cast<size_t>(chunks_of_group(p)) * sizeof(uint32_t);
}

bool attention_may_append(const PagedAttentionParams& p) { return heads_of_group(p) <= kHeads; }

bool attention_may_quantize(const PagedAttentionParams& p) {
  return heads_of_group(p) * p.layout.head_dim % QK == 0;
}

cudaError_t launch_paged_attention(const PagedAttentionParams& p, cudaStream_t stream) {
  if (!is_good(p)) return cudaErrorInvalidValue;
  const Args a = args_of(p);
  const dim3 grid(static_cast<unsigned>(p.max_parts), static_cast<unsigned>(p.layout.n_kv_heads * a.n_chunks),
                  static_cast<unsigned>(p.n_rows));
  const auto kernel = p.layout.type == KvType::kF16 ? attention_kernel<KvType::kF16> : attention_kernel<KvType::kQ8_0>;
  return launch_kernel(kernel, grid, kThreads, stream, a);
}

cudaError_t launch_kv_append(const PagedAttentionParams& p, cudaStream_t stream) {
  if (!is_layout_good(p) || !p.k || !p.v || p.kv_stride < int64_t{p.layout.n_kv_heads} * p.layout.head_dim ||
      p.n_rows > 65535) {
    return cudaErrorInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>(p.layout.n_kv_heads), static_cast<unsigned>(p.n_rows));
  const auto kernel = p.layout.type == KvType::kF16 ? kv_append_kernel<KvType::kF16> : kv_append_kernel<KvType::kQ8_0>;
  return launch_kernel(kernel, grid, kThreads, stream, args_of(p));
}

}  // namespace tandem
