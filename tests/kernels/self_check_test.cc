// The self-check passes for the column under test, and fails for one that is wrong by a little.
#include "kernels/self_check.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

const KernelTable* g_honest = nullptr;

void silu_off(const float* gate, const float* up, int64_t n, float* out) {
  g_honest->silu_mul(gate, up, n, out);
  out[n / 2] *= 1.000002f;
}

void matmul_off(const PackedMatrix& w, int64_t begin, int64_t end, const uint8_t* act, int64_t M,
                float* y, int64_t ldy) {
  g_honest->matmul(w, begin, end, act, M, y, ldy);
  if (w.type == GgmlType::kQ4_K) y[0] = 1e9f;
}

void dense_off(const PackedMatrix& w, int64_t begin, int64_t end, const float* x, int64_t ldx,
               int64_t M, float* y, int64_t ldy) {
  g_honest->matmul_dense(w, begin, end, x, ldx, M, y, ldy);
  if (w.type == GgmlType::kF16) y[1] *= 2.0f;
}

}  // namespace

TEST_CASE("self-check passes here and finds planted faults") {
  const KernelTable* t = tested_column();
  if (!t) return;
  g_honest = t;
  AlignedBytes workspace(kSelfCheckBytes);
  SelfCheckResult results[kSelfCheckOps];
  const int n = self_check(*t, workspace.data(), results);
  REQUIRE(n == 29);
  for (int i = 0; i < n; ++i) {
    INFO(results[i].op << " error " << results[i].max_error << " bound " << results[i].bound);
    CHECK(results[i].ok);
  }
  KernelTable faulty = *t;
  faulty.silu_mul = silu_off;
  faulty.matmul = matmul_off;
  faulty.matmul_dense = dense_off;
  REQUIRE(self_check(faulty, workspace.data(), results) == n);
  for (int i = 0; i < n; ++i) {
    const std::string op = results[i].op;
    INFO(op);
    CHECK(results[i].ok == (op != "silu_mul" && op != "matmul Q4_K" && op != "matmul_dense F16"));
  }
}
