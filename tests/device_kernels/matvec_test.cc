// Products on the device: every type and path against the reference under a computed bound, the same bits for every number
// of rows, path and order of threads, and what the ends make of the results.
#include <cmath>

#include "tests/device_kernels/device_fixture.h"

#include "kernels/act_block.h"
#include "kernels/matvec.cuh"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

double d(float f) { return static_cast<double>(f); }

int64_t small_k(const char* type) { return quant_traits_by_name(type)->block_size == 256 ? 768 : 416; }
bool is_plain(const char* type) { return quant_traits_by_name(type)->block_size == 1; }

// Activations of n_cols columns in device memory.
struct Acts {
  DeviceArray<uint8_t> blocks;
  DeviceArray<float> floats;
  DeviceActs acts;
};
Acts make_acts(const std::vector<float>& x, int64_t n_cols) {
  Acts a{DeviceArray<uint8_t>(quantized(x, n_cols)), DeviceArray<float>(x), {}};
  a.acts.n_cols = n_cols;
  a.acts.blocks = a.blocks.get();
  a.acts.floats = a.floats.get();
  return a;
}

// Results [M][n_rows] of one product.
std::vector<float> multiply(const RandomMatrix& m, const std::vector<float>& x, DotPath path, uint64_t order) {
  DeviceRun run(order);
  const int M = static_cast<int>(static_cast<int64_t>(x.size()) / m.n_cols);
  const DeviceMatrix w = device_matrix(m.traits->type, m.rows.data(), m.n_rows, m.n_cols);
  const Acts acts = make_acts(x, m.n_cols);
  DeviceArray<float> out(static_cast<size_t>(M * m.n_rows), 0xff);
  MatvecParams p;
  p.acts = acts.acts;
  p.n_rows = M;
  p.n_products = 1;
  p.products[0] = {w.matrix, nullptr, out.get(), m.n_rows};
  run.finish(launch_matvec(p, path, nullptr));
  return out.read();
}

std::vector<float> rows_of(const std::vector<float>& x, int64_t first, int64_t n, int64_t n_cols) {
  return {x.begin() + first * n_cols, x.begin() + (first + n) * n_cols};
}

double weight_of_output(const RandomMatrix& m, const float* x, int64_t n) {
  double sum = 0;
  for (int64_t k = 0; k < m.n_cols; ++k) sum += d(m.magnitudes[n * m.n_cols + k]) * std::abs(d(x[k]));
  return sum;
}

}  // namespace

TEST_CASE("device products agree with the reference") {
  const KernelTable& ref = kernel_table_ref();
  for (const char* type : kColumnTypes) {
    const int64_t K = small_k(type), M = 2, N = 37;
    const RandomMatrix m = random_matrix(type, N, K, 21);
    const std::vector<float> x = random_floats(M * K, 1.5f, 22);
    const int64_t tiles = (N + kTileRows - 1) / kTileRows;
    std::vector<uint8_t> packed(ref.packed_bytes(m.traits->type, N, K));
    ref.pack_tiles(m.traits->type, m.rows.data(), N, K, 0, tiles, packed.data());
    const PackedMatrix w = {m.traits->type, N, K, packed.data()};
    std::vector<float> want(M * N), want_f(M * N);
    const std::vector<uint8_t> act = quantized(x, K);
    ref.matmul(w, 0, tiles, act.data(), M, want.data(), N);
    ref.matmul_f32(w, 0, tiles, x.data(), K, M, want_f.data(), N);
    for (DotPath path : {DotPath::kDp4a, DotPath::kFloat}) {
      if (!matvec_serves(m.traits->type, path)) {
        CHECK(is_plain(type));
        continue;
      }
      const bool is_float = path == DotPath::kFloat;
      const std::vector<float> got = multiply(m, x, path, 1);
      WorstError worst(std::string("device ") + (is_float ? "float " : "dp4a ") + type);
      for (int64_t i = 0; i < M; ++i) {
        for (int64_t n = 0; n < N; ++n) {
          // Roundings as the CPU columns' (tests/kernels/matmul_test.cc), and the joins of chains and slices.
          const double terms = is_float ? static_cast<double>(K + 2) : static_cast<double>(8 * K / QK) + 4;
          const double bound = (terms + static_cast<double>(K) / 256 + 2) * kEps * weight_of_output(m, x.data() + i * K, n);
          const int64_t at = i * N + n;
          worst.add(d(got[at]), d(is_float ? want_f[at] : want[at]), bound * (is_float ? 1 : 1.001), n);
        }
      }
      worst.check();
    }
  }
}

TEST_CASE("device products have one result for every M, path and order") {
  for (const char* type : kColumnTypes) {
    const int64_t K = small_k(type), N = 37;
    const RandomMatrix m = random_matrix(type, N, K, 31);
    const std::vector<float> x = random_floats(11 * K, 1.5f, 32);
    const DotPath main_path = is_plain(type) ? DotPath::kFloat : DotPath::kDp4a;
    std::vector<DotPath> paths = {main_path};
    if (!is_plain(type)) paths.push_back(DotPath::kMma);
    const std::vector<float> whole = multiply(m, x, main_path, 1);
    for (DotPath path : paths) {
      for (auto [first, n] : {std::pair{0, 1}, {10, 1}, {3, 2}, {1, 8}, {0, 11}}) {
        INFO(type << " path " << static_cast<int>(path) << " rows " << first << " and " << n - 1 << " more");
        const auto part = multiply(m, rows_of(x, first, n, K), path, static_cast<uint64_t>(first));
        CHECK(same_bits(part, rows_of(whole, first, n, N)));
      }
    }
    if (is_plain(type)) continue;
    const auto floats = multiply(m, x, DotPath::kFloat, 2);
    CHECK(same_bits(multiply(m, rows_of(x, 4, 1, K), DotPath::kFloat, 3), rows_of(floats, 4, 1, N)));
    CHECK_FALSE(same_bits(floats, whole));  // another path, told apart
  }
}

TEST_CASE("a nested matrix has the bits of a plain one and its lean form the reference's values, in odd shapes") {
  const KernelTable& ref = kernel_table_ref();
  for (auto [N, K] : {std::pair{int64_t{1}, int64_t{32}}, {16, 64}, {17, 96}, {33, 288}, {47, 544}}) {
    INFO("[" << N << "][" << K << "]");
    const RandomMatrix plain = random_matrix("Q8_0", N, K, 61), nested = random_matrix("Q8_0 nested", N, K, 61);
    const RandomMatrix lean = random_matrix("Q8_0 lean", N, K, 61);
    REQUIRE((plain.rows == nested.rows && plain.rows == lean.rows));
    const int64_t M = 9;
    const std::vector<float> x = random_floats(M * K, 1.5f, 62);
    for (DotPath path : {DotPath::kDp4a, DotPath::kMma, DotPath::kFloat}) {
      CHECK(same_bits(multiply(nested, x, path, 1), multiply(plain, x, path, 2)));
    }
    const std::vector<float> got = multiply(lean, x, DotPath::kDp4a, 1);
    CHECK(same_bits(multiply(lean, x, DotPath::kMma, 2), got));
    std::vector<float> want(M * N);
    ref.matmul({lean.traits->type, N, K, lean.rows.data()}, 0, (N + kTileRows - 1) / kTileRows, quantized(x, K).data(), M, want.data(), N);
    WorstError worst("device dp4a, lean");
    for (int64_t i = 0; i < M * N; ++i) {
      const double roundings = static_cast<double>(8 * K / QK) + static_cast<double>(K) / 256 + 6;  // as above
      worst.add(d(got[i]), d(want[i]), 1.001 * roundings * kEps * weight_of_output(lean, x.data() + i / N * K, i % N), i);
    }
    worst.check();
  }
}

TEST_CASE("more rows than the tensor cores' kernel takes at once") {
  const RandomMatrix m = random_matrix("Q4_K", 48, 256, 33);
  const std::vector<float> x = random_floats(37 * 256, 1.0f, 34);
  CHECK(same_bits(multiply(m, x, DotPath::kMma, 1), multiply(m, x, DotPath::kDp4a, 2)));
}

TEST_CASE("a long K runs in rounds, with the same bits for one row as for eight") {
  const int64_t K = 256 * 70;  // 70 slices: more than one row's 64, and eight rows' 8
  const RandomMatrix m = random_matrix("Q8_0", 32, K, 35);
  const std::vector<float> x = random_floats(8 * K, 1.0f, 36);
  const auto whole = multiply(m, x, DotPath::kDp4a, 1);
  CHECK(same_bits(multiply(m, rows_of(x, 7, 1, K), DotPath::kDp4a, 2), rows_of(whole, 7, 1, 32)));
  const std::vector<uint8_t> act = quantized(x, K);
  std::vector<float> want(8 * 32);
  const auto& ref = kernel_table_ref();
  ref.matmul({m.traits->type, 32, K, m.rows.data()}, 0, 2, act.data(), 8, want.data(), 32);
  WorstError worst("device dp4a, long K");
  for (int64_t i = 0; i < 8 * 32; ++i) {
    worst.add(d(whole[i]), d(want[i]), 400 * kEps * weight_of_output(m, x.data() + i / 32 * K, i % 32), i);
  }
  worst.check();
}

TEST_CASE("three products in one launch: biases, types, strides, rows of activations, norm, softcap") {
  const int64_t K = 256;
  const RandomMatrix a = random_matrix("Q4_K", 40, K, 41), b = random_matrix("Q6_K", 16, K, 42), c = random_matrix("Q4_K", 100, K, 43);
  const RandomMatrix* all[] = {&a, &b, &c};
  const std::vector<float> x = random_floats(3 * K, 1.0f, 44), bias = random_floats(40, 1.0f, 45);
  std::vector<float> sums = random_floats(3 * K / 32, 1.0f, 46);
  for (float& s : sums) s = std::abs(s) + 0.1f;
  DeviceRun run;
  std::vector<DeviceMatrix> w;
  std::vector<DeviceArray<float>> out;
  for (const RandomMatrix* m : all) {
    w.push_back(device_matrix(m->traits->type, m->rows.data(), m->n_rows, K));
    out.emplace_back(static_cast<size_t>(2 * (m->n_rows + 3)));
  }
  const Acts acts = make_acts(x, K);
  const DeviceArray<float> device_bias(bias), device_sums(sums);
  const DeviceArray<int32_t> rows(std::vector<int32_t>{2, 0});
  MatvecParams p;
  p.acts = acts.acts;
  p.acts.sum_squares = device_sums.get();
  p.act_rows = rows.get();
  p.n_rows = 2;
  p.norm_eps = 1e-5f;
  p.n_products = 3;
  for (size_t i = 0; i < 3; ++i) p.products[i] = {w[i].matrix, i == 0 ? device_bias.get() : nullptr, out[i].get(), all[i]->n_rows + 3};
  int n_launches = 0;
  const cudaError_t error = launch_matvec(p, DotPath::kDp4a, nullptr, &n_launches);
  run.finish(error);
  CHECK(n_launches == 2);  // one a type
  std::vector<std::vector<float>> got;
  for (const auto& o : out) got.push_back(o.read());
  p.softcap = 5.0f;
  run.finish(launch_matvec(p, DotPath::kDp4a, nullptr));
  const std::vector<float> capped = out[2].read();
  WorstError worst("scaled products");
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<float> plain = multiply(*all[i], x, DotPath::kDp4a, 1);
    for (int64_t m = 0; m < 2; ++m) {
      const int64_t from = m == 0 ? 2 : 0, N = all[i]->n_rows;
      double square = 0;
      for (int64_t k = 0; k < K / 32; ++k) square += d(sums[from * (K / 32) + k]);
      const double inverse = 1 / std::sqrt(square / static_cast<double>(K) + 1e-5);
      for (int64_t n = 0; n < N; ++n) {
        const double product = d(plain[from * N + n]) * inverse, want = product + (i == 0 ? d(bias[n]) : 0.0);
        const double value = d(got[i][m * (N + 3) + n]);
        worst.add(value, want, 20 * kEps * (std::abs(product) + std::abs(want)), n);
        if (i == 2) worst.add(d(capped[m * (N + 3) + n]), 5 * std::tanh(value / 5), 8 * kEps * 5, n);
      }
      for (int64_t n = N; n < N + 3; ++n) CHECK(got[i][m * (N + 3) + n] == 0.0f);  // past the row: untouched
    }
  }
  worst.check();
}

TEST_CASE("the residual's end adds, quantizes and sums squares") {
  const int64_t K = 288, N = 96, M = 3;
  const RandomMatrix m = random_matrix("Q5_0", N, K, 51);
  const std::vector<float> x = random_floats(M * K, 1.0f, 52), residual = random_floats(M * N, 1.0f, 53);
  const std::vector<float> norm = random_floats(N, 1.0f, 54), bias = random_floats(N, 1.0f, 55);
  const std::vector<float> y = multiply(m, x, DotPath::kDp4a, 1);
  std::vector<float> sum(M * N), scaled(M * N);
  for (int64_t i = 0; i < M * N; ++i) {
    sum[i] = residual[i] + (y[i] + bias[i % N]);
    scaled[i] = sum[i] * norm[i % N];
  }
  for (uint64_t order : kOrders) {
    DeviceRun run(order);
    const DeviceMatrix w = device_matrix(m.traits->type, m.rows.data(), N, K);
    const Acts acts = make_acts(x, K);
    const DeviceArray<float> device_residual(residual), device_norm(norm), device_bias(bias), floats(M * N), sums(M * N / 32);
    const DeviceArray<uint8_t> blocks(device_acts_block_bytes(M, N));
    MatvecParams p;
    p.acts = acts.acts;
    p.n_rows = M;
    p.n_products = 1;
    p.products[0] = {w.matrix, device_bias.get(), nullptr, 0};
    p.end = MatvecEnd::kResidual;
    p.residual = device_residual.get();
    p.next_norm = device_norm.get();
    p.next = {N, blocks.get(), floats.get(), sums.get()};
    run.finish(launch_matvec(p, DotPath::kDp4a, nullptr));
    CHECK(same_bits(device_residual.read(), sum));
    CHECK(same_bits(floats.read(), scaled));
    CHECK(blocks.read() == quantized(scaled, N));
    const std::vector<float> got = sums.read();
    for (int64_t i = 0; i < M * N / 32; ++i) {
      double want = 0;
      for (int64_t k = 0; k < 32; ++k) want += d(sum[i * 32 + k]) * d(sum[i * 32 + k]);
      CHECK(std::abs(d(got[i]) - want) <= 8 * kEps * want);
    }
  }
}

TEST_CASE("the gate's end multiplies and quantizes") {
  const int64_t K = 256, N = 64, M = 9;
  const RandomMatrix gate = random_matrix("IQ4_XS", N, K, 61), up = random_matrix("IQ4_XS", N, K, 62);
  const std::vector<float> x = random_floats(M * K, 1.0f, 63);
  const std::vector<float> g = multiply(gate, x, DotPath::kDp4a, 1), u = multiply(up, x, DotPath::kDp4a, 1);
  for (GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    std::vector<float> want(M * N);
    const auto ref = activation == GateActivation::kSilu ? kernel_table_ref().silu_mul : kernel_table_ref().gelu_tanh_mul;
    ref(g.data(), u.data(), M * N, want.data());
    for (DotPath path : {DotPath::kDp4a, DotPath::kMma}) {
      DeviceRun run(static_cast<uint64_t>(path) + 1);
      const DeviceMatrix w = device_matrix(gate.traits->type, gate.rows.data(), N, K);
      const DeviceMatrix v = device_matrix(up.traits->type, up.rows.data(), N, K);
      const Acts acts = make_acts(x, K);
      const DeviceArray<float> floats(M * N);
      const DeviceArray<uint8_t> blocks(device_acts_block_bytes(M, N));
      MatvecParams p;
      p.acts = acts.acts;
      p.n_rows = M;
      p.n_products = 2;
      p.products[0].weight = w.matrix;
      p.products[1].weight = v.matrix;
      p.end = MatvecEnd::kGated;
      p.gate = activation;
      p.next = {N, blocks.get(), floats.get(), nullptr};
      int n_launches = 0;
      const cudaError_t error = launch_matvec(p, path, nullptr, &n_launches);
      run.finish(error);
      CHECK(n_launches == 1);
      const std::vector<float> got = floats.read();
      WorstError worst("gated");
      for (int64_t i = 0; i < M * N; ++i) {
        // exp and tanh within 2 ulp of an argument with a few roundings; gelu of a large negative gate is a difference.
        worst.add(d(got[i]), d(want[i]), kEps * (16 * std::abs(d(want[i])) + 8 * std::abs(d(g[i]) * d(u[i]))), i);
      }
      worst.check();
      CHECK(blocks.read() == quantized(got, N));
    }
  }
}

TEST_CASE("what launch_matvec refuses") {
  DeviceRun run;
  const int64_t K = 256;
  const RandomMatrix m = random_matrix("Q4_0", 64, K, 71), f = random_matrix("F16", 64, K, 72);
  const DeviceMatrix w = device_matrix(m.traits->type, m.rows.data(), 64, K), dense = device_matrix(f.traits->type, f.rows.data(), 64, K);
  const Acts acts = make_acts(random_floats(K, 1.0f, 73), K);
  const DeviceArray<float> out(64);
  MatvecParams good;
  good.acts = acts.acts;
  good.n_rows = 1;
  good.n_products = 1;
  good.products[0] = {w.matrix, nullptr, out.get(), 64};
  run.finish(launch_matvec(good, DotPath::kDp4a, nullptr));
  const auto refused = [&](auto change, cudaError_t error, DotPath path = DotPath::kDp4a) {
    MatvecParams p = good;
    change(p);
    CHECK(std::string(cudaGetErrorName(launch_matvec(p, path, nullptr))) == cudaGetErrorName(error));
  };
  refused([](auto& p) { p.n_rows = 0; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.n_products = 4; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.acts.blocks = nullptr; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.acts.blocks += 16; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.acts.n_cols = 224; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.products[0].weight.data += 32; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.products[0].out_stride = 63; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.products[0].out = nullptr; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.end = MatvecEnd::kResidual; }, cudaErrorInvalidValue);
  refused([](auto& p) { p.end = MatvecEnd::kGated; }, cudaErrorInvalidValue);
  refused([&](auto& p) { p.products[0].weight = dense.matrix; }, cudaErrorNotSupported);
  refused([&](auto& p) { p.products[0].weight = dense.matrix; }, cudaErrorNotSupported, DotPath::kMma);
  refused([](auto& p) { p.products[0].weight.type = GgmlType::kQ8_K; }, cudaErrorNotSupported);
  CHECK_FALSE(matvec_serves(GgmlType::kBF16, DotPath::kMma));
  CHECK_FALSE(matvec_serves(GgmlType::kI32, DotPath::kFloat));
}
