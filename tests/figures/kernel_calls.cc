// Every op of the scalar and AVX2 columns once, at fixed shapes, between marks that callgrind counts
// instructions by: run by kernel_figures.py under valgrind (which knows no AVX-512).
//   kernel_calls [OP]   OP ("avx2/add"): called three times, the planted fault that the check must see
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/figures/counted_call.h"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

const char* planted = "";

void measure(const KernelTable& t, const std::string& op, const std::function<void()>& call) {
  const std::string name = std::string(t.isa) + "/" + op;
  count_calls(name, call, name == planted ? 3 : 1);
}

void matmuls(const KernelTable& t) {
  constexpr int64_t kRows = 32, kCols = 512;
  const std::vector<float> x = random_floats(16 * kCols, 1.0f, 5);
  AlignedBytes act(16 * t.act_row_bytes(kCols));
  for (int64_t m = 0; m < 16; ++m) {
    t.quantize_act(&x[m * kCols], kCols, act.data() + static_cast<size_t>(m) * t.act_row_bytes(kCols));
  }
  std::vector<float> y(16 * kRows);
  for (const char* type : {"Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"}) {
    const RandomMatrix m = random_matrix(type, kRows, kCols, 3);
    AlignedBytes packed(t.packed_bytes(m.traits->type, kRows, kCols));
    t.pack_tiles(m.traits->type, m.rows.data(), kRows, kCols, 0, kRows / kTileRows, packed.data());
    const PackedMatrix w = {m.traits->type, kRows, kCols, packed.data()};
    for (int64_t M : {1, 16}) {
      measure(t, std::string("matmul ") + type + " M=" + std::to_string(M), [&] {
        t.matmul(w, 0, kRows / kTileRows, act.data(), M, y.data(), kRows);
      });
    }
  }
  for (const char* type : {"F32", "F16", "BF16"}) {
    const RandomMatrix m = random_matrix(type, kRows, kCols, 3);
    AlignedBytes packed(t.packed_bytes(m.traits->type, kRows, kCols));
    t.pack_tiles(m.traits->type, m.rows.data(), kRows, kCols, 0, kRows / kTileRows, packed.data());
    const PackedMatrix w = {m.traits->type, kRows, kCols, packed.data()};
    for (int64_t M : {1, 16}) {
      measure(t, std::string("matmul_dense ") + type + " M=" + std::to_string(M), [&] {
        t.matmul_dense(w, 0, kRows / kTileRows, x.data(), kCols, M, y.data(), kRows);
      });
    }
  }
}

void rows(const KernelTable& t) {
  constexpr int64_t n = 1536;
  const std::vector<float> a = random_floats(n, 1.0f, 6), b = random_floats(n, 1.0f, 7);
  std::vector<float> out(n), inout = a;
  AlignedBytes act(t.act_row_bytes(n));
  measure(t, "rms_norm", [&] { t.rms_norm(a.data(), b.data(), 1e-5f, n, out.data()); });
  measure(t, "rope halves", [&] { t.rope(inout.data(), 24, 64, 64, b.data(), true); });
  measure(t, "rope adjacent", [&] { t.rope(inout.data(), 24, 64, 64, b.data(), false); });
  measure(t, "silu_mul", [&] { t.silu_mul(a.data(), b.data(), n, out.data()); });
  measure(t, "gelu_tanh_mul", [&] { t.gelu_tanh_mul(a.data(), b.data(), n, out.data()); });
  measure(t, "add", [&] { t.add(a.data(), n, inout.data()); });
  measure(t, "log_sum_exp", [&] { out[0] = static_cast<float>(t.log_sum_exp(a.data(), n)); });
  measure(t, "quantize_act", [&] { t.quantize_act(a.data(), n, act.data()); });
}

// 24 tokens behind 120, and the last of them alone.
void attention(const KernelTable& t, KvType type, const char* type_name) {
  constexpr int kKeys = 144, kTokens = 24, kHeadDim = 64, kPage = 16;
  AttentionParams p;
  p.layout = {type, kPage, 1, kHeadDim, 0, 0};
  p.layout.page_bytes = t.kv_layer_bytes(p.layout);
  AlignedBytes pool(p.layout.page_bytes * (kKeys / kPage));
  std::vector<int32_t> table;
  for (int i = 0; i < kKeys / kPage; ++i) table.push_back(i);
  const std::vector<float> kv = random_floats(kKeys * kHeadDim, 1.0f, 8);
  const auto append = [&] {
    for (int i = 0; i < kKeys; ++i) {
      uint8_t* page = pool.data() + static_cast<size_t>(i / kPage) * p.layout.page_bytes;
      t.kv_append(p.layout, page, i % kPage, &kv[i * kHeadDim], &kv[i * kHeadDim]);
    }
  };
  measure(t, std::string("kv_append ") + type_name, append);
  p.n_heads = 3;
  p.q_stride = p.out_stride = 3 * kHeadDim;
  const std::vector<float> q = random_floats(kTokens * 3 * kHeadDim, 1.0f, 9);
  std::vector<float> out(q.size());
  p.q = q.data();
  p.out = out.data();
  p.pool = pool.data();
  p.page_table = table.data();
  p.first_pos = kKeys - kTokens;
  p.n_tokens = kTokens;
  p.scale = 0.125f;
  AlignedBytes scratch(t.attention_scratch_bytes(p, kTokens));
  measure(t, std::string("attention prefill ") + type_name,
          [&] { t.attention(p, 0, 0, kTokens, scratch.data()); });
  measure(t, std::string("attention decode ") + type_name,
          [&] { t.attention(p, 0, kTokens - 1, kTokens, scratch.data()); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) planted = argv[1];
  int n = 0;
  const KernelColumn* columns = kernel_columns(&n);
  for (int i = 0; i < n; ++i) {
    const KernelTable& t = *columns[i].table;
    if (std::strcmp(t.isa, "ref") != 0 && std::strcmp(t.isa, "avx2") != 0) continue;
    matmuls(t);
    rows(t);
    attention(t, KvType::kF16, "f16");
    attention(t, KvType::kQ8_0, "q8_0");
  }
  return 0;
}
