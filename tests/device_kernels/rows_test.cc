// Embedding, rotations, norms after a branch, gates and quantization on the device, against the CPU's reference.
#include "tests/device_kernels/device_fixture.h"

#include <cmath>
#include <cstring>

#include "kernels/act_block.h"
#include "kernels/device_rows.cuh"
#include "kernels/paged_attention.cuh"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {
double d(float f) { return static_cast<double>(f); }
}  // namespace

TEST_CASE("embedding gives the floats of dequantize_row, every type") {
  for (const char* type : kColumnTypes) {
    const int64_t hidden = 512, vocab = 37, M = 4;
    const RandomMatrix m = random_matrix(type, vocab, hidden, 11);
    const std::vector<float> norm = random_floats(hidden, 1.0f, 12);
    const std::vector<int32_t> ids = {36, 0, -1, 17};
    DeviceRun run;
    const DeviceMatrix table = device_matrix(m.traits->type, m.rows.data(), vocab, hidden);
    const DeviceArray<int32_t> tokens(ids);
    const DeviceArray<float> x(M * hidden, 0xff), next_norm(norm), floats(M * hidden), sums(M * hidden / 32);
    const DeviceArray<uint8_t> blocks(device_acts_block_bytes(M, hidden));
    EmbedParams p;
    p.table = table.matrix;
    p.tokens = tokens.get();
    p.n_rows = M;
    p.scale = 3.0f;
    p.x = x.get();
    p.next_norm = next_norm.get();
    p.next = {hidden, blocks.get(), floats.get(), sums.get()};
    run.finish(launch_embed(p, nullptr));
    std::vector<float> want(M * hidden), scaled(M * hidden);
    for (int64_t i = 0; i < M * hidden; ++i) {
      const int32_t id = ids[i / hidden];
      want[i] = id < 0 ? 0.0f : m.values[id * hidden + i % hidden] * 3.0f;
      scaled[i] = want[i] * norm[i % hidden];
    }
    INFO(type);
    const std::vector<float> got = x.read();
    bool is_same = true;
    for (int64_t i = 0; i < M * hidden; ++i) is_same = is_same && got[i] == want[i];  // -0 is 0
    CHECK(is_same);
    for (float& f : scaled) f += 0.0f;
    CHECK(blocks.read() == quantized(floats.read(), hidden));
    WorstError worst(std::string("sums of squares ") + type);
    const std::vector<float> got_sums = sums.read(), got_floats = floats.read();
    for (int64_t i = 0; i < M * hidden; ++i) worst.add(d(got_floats[i]), d(scaled[i]), 1e-30, i);
    for (int64_t b = 0; b < M * hidden / 32; ++b) {
      double sum = 0;
      for (int64_t k = 0; k < 32; ++k) sum += d(want[b * 32 + k]) * d(want[b * 32 + k]);
      worst.add(d(got_sums[b]), sum, 8 * kEps * sum, b);
    }
    worst.check();
  }
}

TEST_CASE("device quantization equals the reference's in every byte") {
  std::vector<float> x = random_floats(2 * 32 * 40, 3.0f, 5);
  for (int i = 0; i < 32; ++i) {
    x[i] = 0;
    x[32 + i] = (i % 2 ? -1e-36f : 1e-40f);
    x[64 + i] = static_cast<float>(i - 15) * 0.5f;               // ties at half steps
    x[96 + i] = i == 7 ? 3e38f : 1e30f * static_cast<float>(i);  // near overflow
    x[128 + i] = i == 3 ? INFINITY : 1.0f;
    x[160 + i] = i == 31 ? NAN : 2.0f;
    x[192 + i] = i == 0 ? -127.0f : static_cast<float>(i) + 0.5f;
  }
  const std::vector<uint8_t> want = quantized(x, 32 * 40);
  for (uint64_t order : kOrders) {
    DeviceRun run(order);
    const DeviceArray<float> floats(x);
    const DeviceArray<uint8_t> blocks(want.size());
    run.finish(launch_quantize({32 * 40, blocks.get(), floats.get(), nullptr}, 2, nullptr));
    const std::vector<uint8_t> got = blocks.read();
    for (size_t m = 0; m < 2; ++m) {
      for (size_t b = 0; b < 40; ++b) {
        const size_t at = m * act_row_bytes_of(32 * 40) + b * sizeof(ActBlock);
        const auto* g = reinterpret_cast<const ActBlock*>(&got[at]);
        const bool is_nan = m == 0 && (b == 4 || b == 5);
        INFO("row " << m << " block " << b);
        CHECK(std::isnan(g->d) == is_nan);
        CHECK(memcmp(&got[at], &want[at], is_nan ? 48 : sizeof(ActBlock)) == 0);
      }
    }
  }
}

TEST_CASE("rotations are those of the CPU's forward pass") {
  const std::vector<int32_t> positions = {0, 1, -1, 2047, 131071};
  const std::vector<float> inv_freq = {1.0f, 0.3f, 1e-4f}, factor = {1.0f, 1.0f, 0.5f};
  DeviceRun run;
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<float> device_freq(inv_freq), device_factor(factor), out(5 * 6, 0xff);
  run.finish(launch_rotations({device_positions.get(), 5, device_freq.get(), device_factor.get(), 3, out.get()}, nullptr));
  const std::vector<float> got = out.read();
  for (size_t m = 0; m < 5; ++m) {
    for (size_t i = 0; i < 3; ++i) {
      const double angle = positions[m] * d(inv_freq[i]);
      const float* at = &got[m * 6 + 2 * i];
      if (positions[m] < 0) {
        CHECK((std::isnan(at[0]) && std::isnan(at[1])));
        continue;
      }
      // Both libraries round a sine that is right to double: the float differs where it lies on a float's edge.
      CHECK(std::abs(d(at[0]) - std::cos(angle) * d(factor[i])) <= 2 * kEps);
      CHECK(std::abs(d(at[1]) - std::sin(angle) * d(factor[i])) <= 2 * kEps);
    }
  }
}

TEST_CASE("a branch with a norm of its own is added") {
  const int64_t n = 96 * 7, M = 2;
  const std::vector<float> branch = random_floats(M * n, 2.0f, 31), x = random_floats(M * n, 1.0f, 32);
  const std::vector<float> post = random_floats(n, 1.0f, 33), norm = random_floats(n, 1.0f, 34);
  std::vector<std::vector<float>> results;
  for (bool has_post : {true, false}) {
    for (uint64_t order : kOrders) {
      DeviceRun run(order);
      const DeviceArray<float> device_branch(branch), residual(x), device_post(post), device_norm(norm), floats(M * n), sums(M * n / 32);
      const DeviceArray<uint8_t> blocks(device_acts_block_bytes(M, n));
      BranchParams p;
      p.branch = device_branch.get();
      p.n_rows = M;
      p.hidden = n;
      p.post_norm = has_post ? device_post.get() : nullptr;
      p.norm_eps = 1e-6f;
      p.residual = residual.get();
      p.next_norm = device_norm.get();
      p.next = {n, blocks.get(), floats.get(), sums.get()};
      run.finish(launch_add_branch(p, nullptr));
      const std::vector<float> got = residual.read(), next = floats.read();
      WorstError worst("added branch");
      for (int64_t m = 0; m < M; ++m) {
        std::vector<float> y(branch.begin() + m * n, branch.begin() + (m + 1) * n);
        if (has_post) kernel_table_ref().rms_norm(y.data(), post.data(), 1e-6f, n, y.data());
        for (int64_t i = 0; i < n; ++i) {
          const double bound = kEps * (std::abs(d(y[i])) * (0.5 * static_cast<double>(n) / 32 + 12) + 2 * std::abs(d(x[m * n + i])));
          worst.add(d(got[m * n + i]), d(x[m * n + i]) + d(y[i]), bound, i);
          CHECK(next[m * n + i] == got[m * n + i] * norm[i]);
        }
      }
      worst.check();
      CHECK(blocks.read() == quantized(next, n));
      results.push_back(got);
      if (order > 0) CHECK(same_bits(got, results[results.size() - 2]));
    }
  }
}

TEST_CASE("gates whose weights have two types") {
  const int64_t n = 32 * 11, M = 2;
  const std::vector<float> gate = random_floats(M * n, 4.0f, 41), up = random_floats(M * n, 1.0f, 42);
  std::vector<float> want(M * n);
  kernel_table_ref().silu_mul(gate.data(), up.data(), M * n, want.data());
  DeviceRun run;
  const DeviceArray<float> device_gate(gate), device_up(up), floats(M * n);
  const DeviceArray<uint8_t> blocks(device_acts_block_bytes(M, n));
  run.finish(launch_gated(device_gate.get(), device_up.get(), M, n, GateActivation::kSilu, {n, blocks.get(), floats.get(), nullptr}, nullptr));
  const std::vector<float> got = floats.read();
  WorstError worst("gate");
  for (int64_t i = 0; i < M * n; ++i) worst.add(d(got[i]), d(want[i]), 8 * kEps * std::abs(d(want[i])), i);
  worst.check();
  CHECK(blocks.read() == quantized(got, n));
}

#if defined(TANDEM_SIMT)
TEST_CASE("the kernels under test are observed") { CHECK(simt::is_instrumented()); }
#endif
