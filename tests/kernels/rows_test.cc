// Ops on rows of floats, column under test against the reference, with lengths of every tail.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

const int64_t kLengths[] = {1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 576, 577, 1536, 2051};

// Values from -range to range in even steps: every regime of exp.
std::vector<float> ramp(size_t n, float range) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    x[i] = range * (2.0f * static_cast<float>(i) / static_cast<float>(n - 1) - 1.0f);
  }
  return x;
}

double d(float f) { return static_cast<double>(f); }

}  // namespace

TEST_CASE("rms_norm agrees with the reference") {
  const KernelTable* t = tested_column();
  if (!t) return;
  WorstError worst("rms_norm");
  for (int64_t n : kLengths) {
    const auto x = random_floats(n, 2.0f, 61), w = random_floats(n, 1.0f, 62);
    std::vector<float> got(n), want(n), in_place = x;
    t->rms_norm(x.data(), w.data(), 1e-5f, n, got.data());
    kernel_table_ref().rms_norm(x.data(), w.data(), 1e-5f, n, want.data());
    t->rms_norm(in_place.data(), w.data(), 1e-5f, n, in_place.data());
    CHECK(memcmp(in_place.data(), got.data(), n * 4) == 0);
    for (int64_t i = 0; i < n; ++i) {  // half the sum's error under the root, and six roundings
      worst.add(d(got[i]), d(want[i]),
                std::abs(d(want[i])) * kEps * (0.5 * static_cast<double>(n) + 6), i);
    }
  }
  worst.check();
}

TEST_CASE("rms_norm of zeros is zero") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const std::vector<float> x(40, 0.0f), w(40, 2.0f);
  std::vector<float> out(40, 1.0f);
  t->rms_norm(x.data(), w.data(), 1e-6f, 40, out.data());
  for (float v : out) CHECK(v == 0.0f);
}

TEST_CASE("rope turns pairs and leaves the rest of the head alone") {
  const KernelTable* t = tested_column();
  if (!t) return;
  const struct {
    int heads, head_dim, rope_dim;
  } shapes[] = {{9, 64, 64}, {1, 256, 256}, {3, 80, 80}, {2, 64, 32},
                {2, 24, 20}, {1, 8, 2},     {2, 96, 48}, {1, 128, 126}};
  for (bool neox : {true, false}) {
    WorstError worst(neox ? "rope neox" : "rope adjacent");
    for (const auto& s : shapes) {
      std::vector<float> angles(s.rope_dim);
      for (int i = 0; i < s.rope_dim / 2; ++i) {
        const float a = 1000.0f * std::pow(10000.0f, -2.0f * static_cast<float>(i) /
                                                         static_cast<float>(s.rope_dim));
        angles[2 * i] = std::cos(a);
        angles[2 * i + 1] = std::sin(a);
      }
      const auto x = random_floats(s.heads * s.head_dim, 1.0f, 71);
      std::vector<float> got = x, want = x;
      t->rope(got.data(), s.heads, s.head_dim, s.rope_dim, angles.data(), neox);
      kernel_table_ref().rope(want.data(), s.heads, s.head_dim, s.rope_dim, angles.data(), neox);
      for (int i = 0; i < s.heads * s.head_dim; ++i) {
        if (i % s.head_dim >= s.rope_dim) {
          CHECK(got[i] == x[i]);
          continue;
        }
        const int at = i % s.head_dim, half = s.rope_dim / 2;
        const int mate = neox ? (at < half ? i + half : i - half) : (i ^ 1);
        worst.add(d(got[i]), d(want[i]), 3 * kEps * (std::abs(d(x[i])) + std::abs(d(x[mate]))), i);
      }
    }
    worst.check();
  }
}

TEST_CASE("silu_mul agrees with the reference, far tails included") {
  const KernelTable* t = tested_column();
  if (!t) return;
  WorstError worst("silu_mul");
  for (int64_t n : kLengths) {
    if (n < 2) continue;
    for (float range : {1.0f, 10.0f, 80.0f, 120.0f, 1e4f}) {
      const auto g = ramp(n, range), u = random_floats(n, 1.0f, 81);
      std::vector<float> got(n), want(n);
      t->silu_mul(g.data(), u.data(), n, got.data());
      kernel_table_ref().silu_mul(g.data(), u.data(), n, want.data());
      for (int64_t i = 0; i < n;
           ++i) {  // exp 2^-22, four roundings; e^-g overflows where silu < 1e-36
        worst.add(d(got[i]), d(want[i]),
                  std::abs(d(want[i])) * (4 * kEps + 4 * kEps) + std::abs(d(u[i])) * 1e-36, i);
      }
    }
  }
  worst.check();
}

TEST_CASE("gelu_tanh_mul agrees with the reference, far tails included") {
  const KernelTable* t = tested_column();
  if (!t) return;
  WorstError worst("gelu_tanh_mul");
  for (int64_t n : kLengths) {
    if (n < 2) continue;
    for (float range : {0.5f, 4.0f, 12.0f, 100.0f}) {
      const auto g = ramp(n, range), u = random_floats(n, 1.0f, 82);
      std::vector<float> got(n), want(n);
      t->gelu_tanh_mul(g.data(), u.data(), n, got.data());
      kernel_table_ref().gelu_tanh_mul(g.data(), u.data(), n, want.data());
      for (int64_t i = 0; i < n; ++i) {
        const double x = d(g[i]), argument = std::abs(1.6 * (x + 0.044715 * x * x * x));
        // As silu, and the argument's own roundings times its size; 1e-15: the reference's 1 +
        // tanh.
        const double bound = std::abs(d(want[i])) * kEps * (8 + 5 * std::min(argument, 100.0)) +
                             std::abs(d(u[i])) * (1e-36 + 1e-15 * std::abs(x));
        worst.add(d(got[i]), d(want[i]), bound, i);
      }
    }
  }
  worst.check();
}

TEST_CASE("add is exact") {
  const KernelTable* t = tested_column();
  if (!t) return;
  for (int64_t n : kLengths) {
    const auto x = random_floats(n, 1.0f, 91);
    auto got = random_floats(n + 1, 1.0f, 92);
    auto want = got;
    t->add(x.data(), n, got.data());
    for (int64_t i = 0; i < n; ++i) want[i] += x[i];
    CHECK(memcmp(got.data(), want.data(), (n + 1) * 4) == 0);
  }
}

TEST_CASE("log_sum_exp agrees with the reference and never falls below the maximum") {
  const KernelTable* t = tested_column();
  if (!t) return;
  WorstError worst("log_sum_exp");
  for (int64_t n : kLengths) {
    for (float sigma : {0.01f, 3.0f, 30.0f}) {
      auto x = random_floats(n, sigma, 101);
      for (float shift : {0.0f, 500.0f, -500.0f}) {
        float max = -INFINITY;
        for (float& v : x) v += shift;
        for (float v : x) max = std::max(max, v);
        const double got = t->log_sum_exp(x.data(), n),
                     want = kernel_table_ref().log_sum_exp(x.data(), n);
        CHECK(got >= d(max));
        worst.add(got, want, 6 * kEps, n);  // exp 2^-22 = 4 eps, and the rounding of x - max
      }
    }
  }
  worst.check();
  const std::vector<float> lonely = {-3.0f, 1e30f, -INFINITY};
  CHECK(t->log_sum_exp(lonely.data(), 3) == d(1e30f));
  CHECK(t->log_sum_exp(lonely.data() + 2, 1) == -INFINITY);
  const std::vector<float> equal(4096, 2.5f);
  CHECK(std::abs(t->log_sum_exp(equal.data(), 4096) - (2.5 + std::log(4096.0))) < 1e-12);
}
