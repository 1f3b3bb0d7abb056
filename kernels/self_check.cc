#include "kernels/self_check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/act_block.h"
#include "kernels/random_blocks.h"
#include "kernels/tile_layout.h"

namespace tandem {
namespace {

constexpr double kEps = 5.9604644775390625e-8;  // 2^-24
constexpr int kN = 20, kK = 512, kM = 5;        // one tile and a partial one; two super-blocks

double d(float f) { return static_cast<double>(f); }

// Hands out the caller's workspace; sizes below are fixed, and their sum lies well under
// kSelfCheckBytes.
struct Workspace {
  uint8_t* next;
  uint8_t* bytes(size_t n) {
    uint8_t* p = next;
    next += (n + 63) / 64 * 64;
    return p;
  }
  float* floats(size_t n) { return reinterpret_cast<float*>(bytes(n * sizeof(float))); }
};

// Keeps the element with the largest share of its bound.
struct Worst {
  SelfCheckResult* result;
  double share = -1;

  Worst(SelfCheckResult* r, const char* op, const char* type = "") : result(r) {
    *r = {};
    r->ok = true;
    snprintf(r->op, sizeof r->op, "%s%s%s", op, *type ? " " : "", type);
  }
  void add(double got, double want, double bound) {
    const double error = got == want ? 0 : fabs(got - want);
    const double now = error == 0 ? 0 : error / bound;
    if (!(now <= 1)) result->ok = false;
    if (now <= share) return;
    share = now;
    result->max_error = error;
    result->bound = bound;
  }
};

void random_floats(int64_t n, float scale, uint32_t seed, float* out) {
  fill_random_blocks(*quant_traits_by_name("F32"), n, seed, reinterpret_cast<uint8_t*>(out));
  for (int64_t i = 0; i < n; ++i) out[i] *= 20 * scale;
}

// |scale * quant| + |min| of every weight: what rounding is relative to.
void magnitudes_of(const QuantTraits& t, const uint8_t* rows, Workspace ws, float* out) {
  t.dequantize_row(rows, kN * kK, out);
  for (int i = 0; i < kN * kK; ++i) out[i] = fabsf(out[i]);
  if (!has_minimum(t)) return;
  const int64_t n_blocks = kN * kK / t.block_size;
  uint8_t* zeroed = ws.bytes(static_cast<size_t>(n_blocks * t.block_bytes));
  float* mins = ws.floats(kN * kK);
  memcpy(zeroed, rows, static_cast<size_t>(n_blocks * t.block_bytes));
  set_quant_bytes(t, n_blocks, 0, zeroed);
  t.dequantize_row(zeroed, kN * kK, mins);
  for (int i = 0; i < kN * kK; ++i) out[i] += 2 * fabsf(mins[i]);
}

PackedMatrix pack(const KernelTable& table, const QuantTraits& t, const uint8_t* rows,
                  Workspace* ws) {
  uint8_t* packed = ws->bytes(table.packed_bytes(t.type, kN, kK));
  table.pack_tiles(t.type, rows, kN, kK, 0, (kN + kTileRows - 1) / kTileRows, packed);
  return {t.type, kN, kK, packed};
}

void check_matmul(const KernelTable& table, const QuantTraits& t, Workspace ws,
                  SelfCheckResult* result) {
  const KernelTable& ref = kernel_table_ref();
  const int64_t n_blocks = kN * kK / t.block_size;
  uint8_t* rows = ws.bytes(static_cast<size_t>(n_blocks * t.block_bytes));
  fill_random_blocks(t, n_blocks, 17, rows);
  float* magnitudes = ws.floats(kN * kK);
  magnitudes_of(t, rows, ws, magnitudes);
  float* x = ws.floats(kM * kK);
  random_floats(kM * kK, 1.0f, 18, x);
  const size_t stride = table.act_row_bytes(kK);
  uint8_t* act = ws.bytes(kM * stride);
  for (int m = 0; m < kM; ++m)
    table.quantize_act(x + m * kK, kK, act + static_cast<size_t>(m) * stride);
  float* got = ws.floats(kM * kN);
  float* want = ws.floats(kM * kN);
  const PackedMatrix w = pack(table, t, rows, &ws), w_ref = pack(ref, t, rows, &ws);
  table.matmul(w, 0, 2, act, kM, got, kN);
  ref.matmul(w_ref, 0, 2, act, kM, want, kN);
  Worst worst(result, "matmul", t.name);
  // Two roundings a scale (conversion, addition; a block has at most four scales and minimums) and
  // four a product; weights that are floats round at each value.
  const double roundings = (t.block_size == 1 ? kK : 8 * kK / QK) + 4;
  for (int i = 0; i < kM * kN; ++i) {
    const int m = i / kN, n = i % kN;
    const auto* a = reinterpret_cast<const ActBlock*>(act + static_cast<size_t>(m) * stride);
    double sum = 0;
    for (int k = 0; k < kK; ++k) {
      const ActBlock& block = a[k / QK];
      const double x = d(block.d) * act_level(block, k % QK);
      sum += d(magnitudes[n * kK + k]) * fabs(x);
    }
    worst.add(d(got[i]), d(want[i]), roundings * kEps * sum);
  }
}

void check_dense(const KernelTable& table, const QuantTraits& t, Workspace ws,
                 SelfCheckResult* result) {
  uint8_t* rows = ws.bytes(static_cast<size_t>(kN * kK * t.block_bytes));
  fill_random_blocks(t, kN * kK, 19, rows);
  float* values = ws.floats(kN * kK);
  t.dequantize_row(rows, kN * kK, values);
  float* x = ws.floats(kM * kK);
  random_floats(kM * kK, 1.0f, 20, x);
  float* got = ws.floats(kM * kN);
  float* want = ws.floats(kM * kN);
  const KernelTable& ref = kernel_table_ref();
  const PackedMatrix w = pack(table, t, rows, &ws), w_ref = pack(ref, t, rows, &ws);
  table.matmul_dense(w, 0, 2, x, kK, kM, got, kN);
  ref.matmul_dense(w_ref, 0, 2, x, kK, kM, want, kN);
  Worst worst(result, "matmul_dense", t.name);
  const bool is_rounded = t.type == GgmlType::kBF16 && strcmp(table.isa, "avx512bf16") == 0;
  for (int i = 0; i < kM * kN; ++i) {
    double sum = 0;
    for (int k = 0; k < kK; ++k) sum += fabs(d(x[i / kN * kK + k]) * d(values[i % kN * kK + k]));
    worst.add(d(got[i]), d(want[i]), ((kK + 2) * kEps + (is_rounded ? 1.0 / 512 : 0)) * sum);
  }
}

void check_quantize_act(const KernelTable& table, Workspace ws, SelfCheckResult* result) {
  float* x = ws.floats(kK);
  random_floats(kK, 3.0f, 19, x);
  uint8_t* got = ws.bytes(table.act_row_bytes(kK));
  uint8_t* want = ws.bytes(kernel_table_ref().act_row_bytes(kK));
  table.quantize_act(x, kK, got);
  kernel_table_ref().quantize_act(x, kK, want);
  Worst worst(result, "quantize_act");
  const size_t bytes = kK / QK * sizeof(ActBlock);
  worst.add(memcmp(got, want, bytes) == 0 ? 0 : 1, 0, 0.5);  // equal in every byte
}

void check_rows(const KernelTable& table, Workspace ws, SelfCheckResult results[5]) {
  const KernelTable& ref = kernel_table_ref();
  constexpr int kLength = 577;  // an odd tail
  float* x = ws.floats(kLength);
  float* y = ws.floats(kLength);
  float* got = ws.floats(kLength);
  float* want = ws.floats(kLength);
  random_floats(kLength, 8.0f, 20, x);
  random_floats(kLength, 1.0f, 21, y);

  Worst norm(results, "rms_norm");
  table.rms_norm(x, y, 1e-5f, kLength, got);
  ref.rms_norm(x, y, 1e-5f, kLength, want);
  for (int i = 0; i < kLength; ++i) {
    norm.add(d(got[i]), d(want[i]), fabs(d(want[i])) * kEps * (0.5 * kLength + 6));
  }
  Worst silu(results + 1, "silu_mul");
  table.silu_mul(x, y, kLength, got);
  ref.silu_mul(x, y, kLength, want);
  for (int i = 0; i < kLength; ++i) {
    silu.add(d(got[i]), d(want[i]), fabs(d(want[i])) * kEps * 8 + fabs(d(y[i])) * 1e-36);
  }
  Worst gelu(results + 2, "gelu_tanh_mul");
  table.gelu_tanh_mul(x, y, kLength, got);
  ref.gelu_tanh_mul(x, y, kLength, want);
  for (int i = 0; i < kLength; ++i) {
    const double g = d(x[i]), argument = fmin(100.0, fabs(1.6 * (g + 0.044715 * g * g * g)));
    const double bound = fabs(d(want[i])) * kEps * (8 + 5 * argument) + fabs(d(y[i]) * g) * 1e-15;
    gelu.add(d(got[i]), d(want[i]), bound + fabs(d(y[i])) * 1e-36);
  }
  Worst lse(results + 3, "log_sum_exp");
  lse.add(table.log_sum_exp(x, kLength), ref.log_sum_exp(x, kLength), 6 * kEps);

  Worst rope(results + 4, "rope");
  for (int i = 0; i < kLength; ++i) y[i] = i % 2 ? sinf(x[i - 1]) : cosf(x[i]);
  for (int neox = 0; neox < 2; ++neox) {
    memcpy(got, x, kLength * sizeof(float));
    memcpy(want, x, kLength * sizeof(float));
    table.rope(got, 7, 80, 80, y, neox == 1);
    ref.rope(want, 7, 80, 80, y, neox == 1);
    for (int i = 0; i < 7 * 80; ++i) {
      const int at = i % 80, mate = neox ? (at < 40 ? i + 40 : i - 40) : i ^ 1;
      rope.add(d(got[i]), d(want[i]), 3 * kEps * (fabs(d(x[i])) + fabs(d(x[mate]))));
    }
  }
}

void check_attention(const KernelTable& table, KvType type, Workspace ws, SelfCheckResult* result) {
  constexpr int kTokens = 37, kDim = 64, kHeads = 3, kPage = 16, kPages = 3;
  const KernelTable& ref = kernel_table_ref();
  AttentionParams p;
  p.layout = {type, kPage, 1, kDim, 0, 0};
  p.layout.page_bytes = table.kv_layer_bytes(p.layout);
  uint8_t* pool = ws.bytes(kPages * p.layout.page_bytes);
  memset(pool, 0, kPages * p.layout.page_bytes);
  float* q = ws.floats(kTokens * kHeads * kDim);
  float* k = ws.floats(kTokens * kDim);
  float* v = ws.floats(kTokens * kDim);
  random_floats(kTokens * kHeads * kDim, 1.0f, 22, q);
  random_floats(kTokens * kDim, 1.0f, 23, k);
  random_floats(kTokens * kDim, 1.0f, 24, v);
  const int32_t pages[kPages] = {2, 0, 1};
  for (int i = 0; i < kTokens; ++i) {
    uint8_t* page = pool + static_cast<size_t>(pages[i / kPage]) * p.layout.page_bytes;
    table.kv_append(p.layout, page, i % kPage, k + i * kDim, v + i * kDim);
  }
  p.pool = pool;
  p.page_table = pages;
  p.q = q;
  p.q_stride = p.out_stride = kHeads * kDim;
  p.n_heads = kHeads;
  p.n_tokens = kTokens;
  p.scale = 0.125f;
  float* got = ws.floats(kTokens * kHeads * kDim);
  float* want = ws.floats(kTokens * kHeads * kDim);
  p.out = got;
  table.attention(p, 0, 0, kTokens, ws.bytes(table.attention_scratch_bytes(p, kTokens)));
  p.out = want;
  ref.attention(p, 0, 0, kTokens, ws.bytes(ref.attention_scratch_bytes(p, kTokens)));
  // A score's chain of fma, twice through exp, and the sums over keys, relative to the largest
  // value. No |q·k| of these 64 values (all below 3.5) exceeds 800, no |v| 3.5.
  const double score_error = 800 * 0.125 * (kDim + 3) * kEps;
  Worst worst(result, "attention", type == KvType::kF16 ? "f16" : "q8_0");
  for (int i = 0; i < kTokens * kHeads * kDim; ++i) {
    worst.add(d(got[i]), d(want[i]), 3.5 * (2 * score_error + (kTokens + 32) * kEps));
  }
}

}  // namespace

int self_check(const KernelTable& table, uint8_t* workspace,
               SelfCheckResult results[kSelfCheckOps]) {
  const Workspace ws = {workspace};
  int n = 0;
  for (const TileShape& shape : kTileShapes) {
    const QuantTraits& t = *quant_traits(static_cast<uint32_t>(shape.type));
    check_matmul(table, t, ws, results + n++);
  }
  check_dense(table, *quant_traits_by_name("F32"), ws, results + n++);
  check_dense(table, *quant_traits_by_name("F16"), ws, results + n++);
  check_dense(table, *quant_traits_by_name("BF16"), ws, results + n++);
  check_quantize_act(table, ws, results + n++);
  check_rows(table, ws, results + n);
  n += 5;
  check_attention(table, KvType::kF16, ws, results + n++);
  check_attention(table, KvType::kQ8_0, ws, results + n++);
  return n;
}

}  // namespace tandem
