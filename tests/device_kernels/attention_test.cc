// Attention over pages on the device: against the reference under a computed bound, pages byte by byte, and the same bits for
// every batch, split of the launch and order of threads. Slots that nobody may see hold NaN; pages that left the window are -1.
#include "tests/device_kernels/device_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/act_block.h"
#include "kernels/kv_layout.h"
#include "kernels/paged_attention.cuh"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

double d(float f) { return static_cast<double>(f); }

struct Case {
  const char* name;
  KvType type;
  int head_dim, page_size, n_kv_heads, n_heads, window;
  float softcap;
  bool has_norm, neox;
  int rope_dim;
};

const Case kCases[] = {
    {"SmolLM2", KvType::kF16, 64, 16, 3, 9, 0, 0, false, false, 64},
    {"gemma, window, norms", KvType::kF16, 256, 16, 1, 4, 20, 0, true, true, 256},
    {"qwen3, pages of 32, softcap", KvType::kF16, 128, 32, 2, 4, 0, 30.0f, true, true, 128},
    {"window of one", KvType::kF16, 64, 16, 1, 1, 1, 0, false, true, 64},
    {"head 80, part of it turns", KvType::kF16, 80, 16, 2, 2, 0, 0, false, true, 32},
    {"head 72, no rotation", KvType::kF16, 72, 16, 1, 2, 7, 0, false, true, 0},
    {"head 512", KvType::kF16, 512, 16, 1, 2, 0, 0, false, true, 64},
    {"many heads", KvType::kF16, 64, 16, 1, 19, 0, 0, false, true, 64},
    {"q8_0", KvType::kQ8_0, 64, 16, 3, 9, 0, 0, false, false, 64},
    {"q8_0, partial block, pages of 32", KvType::kQ8_0, 80, 32, 2, 4, 50, 0, false, true, 80},
    {"q8_0, head 8", KvType::kQ8_0, 8, 16, 1, 8, 0, 0, false, true, 8},
};

// A sequence's cache on host and device, and the new row of each of `positions`.
struct Setup {
  Case c;
  std::vector<int> positions;
  KvLayout layout;
  std::vector<uint8_t> pool;                   // before the step
  std::vector<std::vector<int32_t>> tables;    // a row
  int table_stride = 0;
  std::vector<float> q, k, v, cos_sin, q_norm, k_norm;
  std::vector<uint8_t> want_pool;              // after it
  std::vector<float> want;                     // [M][n_heads * head_dim]
  double bound = 0;
};

void prepare(const Case& c, const float* norm, int pos, float* head, const std::vector<float>& cos_sin, int64_t row) {
  (void)pos;
  if (norm) kernel_table_ref().rms_norm(head, norm, 1e-6f, c.head_dim, head);
  if (c.rope_dim) kernel_table_ref().rope(head, 1, c.head_dim, c.rope_dim, &cos_sin[row * c.rope_dim], c.neox);
}

Setup make_setup(const Case& c, const std::vector<int>& positions) {
  const KernelTable& ref = kernel_table_ref();
  Setup s{c, positions, {}, {}, {}, 0, {}, {}, {}, {}, {}, {}, {}, {}, 0};
  s.layout = {c.type, c.page_size, c.n_kv_heads, c.head_dim, 0, 0};
  const size_t layer = ref.kv_layer_bytes(s.layout);
  s.layout.layer_offset = layer;  // the second of three layers
  s.layout.page_bytes = 3 * layer;
  int n_pages = 1;
  for (int pos : positions) {
    s.table_stride = std::max(s.table_stride, pos / c.page_size + 1);
    n_pages += pos / c.page_size + 1;
  }
  s.pool.resize(s.layout.page_bytes * n_pages);
  for (size_t i = 0; i < s.pool.size(); i += 2) {
    const uint16_t nan = 0x7e00;
    memcpy(&s.pool[i], &nan, 2);
  }
  std::vector<int32_t> pages(n_pages);
  for (int i = 0; i < n_pages; ++i) pages[i] = i;
  std::shuffle(pages.begin(), pages.end(), std::mt19937(3));
  const int64_t M = static_cast<int64_t>(positions.size()), D = c.head_dim, kv = c.n_kv_heads * D, qd = c.n_heads * D;
  s.q = random_floats(M * qd, 1.5f, 113);
  s.k = random_floats(M * kv, 1.0f, 114);
  s.v = random_floats(M * kv, 1.0f, 115);
  s.q_norm = random_floats(D, 1.0f, 116);
  s.k_norm = random_floats(D, 1.0f, 117);
  s.cos_sin.resize(static_cast<size_t>(M * std::max(c.rope_dim, 1)));
  for (int64_t m = 0; m < M; ++m) {
    for (int i = 0; i < c.rope_dim / 2; ++i) {
      const double angle = positions[m] * std::pow(10000.0, -2.0 * i / c.rope_dim);
      s.cos_sin[m * c.rope_dim + 2 * i] = static_cast<float>(std::cos(angle));
      s.cos_sin[m * c.rope_dim + 2 * i + 1] = static_cast<float>(std::sin(angle));
    }
  }
  size_t next_page = 0;
  for (int64_t m = 0; m < M; ++m) {
    const int pos = positions[m];
    std::vector<int32_t> table(s.table_stride, -1);
    const int first = first_visible_key(pos, c.window);
    for (int i = first / c.page_size; i <= pos / c.page_size; ++i) table[i] = pages[next_page++];
    const auto keys = random_floats((pos + 1) * kv, 1.0f, 200 + static_cast<uint32_t>(m));
    const auto values = random_floats((pos + 1) * kv, 1.0f, 300 + static_cast<uint32_t>(m));
    for (int key = first; key < pos; ++key) {
      ref.kv_append(s.layout, &s.pool[table[key / c.page_size] * s.layout.page_bytes], key % c.page_size, &keys[key * kv], &values[key * kv]);
    }
    s.tables.push_back(table);
  }
  // What the step is to leave.
  s.want_pool = s.pool;
  s.want.resize(M * qd);
  std::vector<float> q = s.q, k = s.k;
  double score = 0;
  for (int64_t m = 0; m < M; ++m) {
    const int pos = positions[m];
    for (int h = 0; h < c.n_heads; ++h) prepare(c, c.has_norm ? s.q_norm.data() : nullptr, pos, &q[m * qd + h * D], s.cos_sin, m);
    for (int h = 0; h < c.n_kv_heads; ++h) prepare(c, c.has_norm ? s.k_norm.data() : nullptr, pos, &k[m * kv + h * D], s.cos_sin, m);
    ref.kv_append(s.layout, &s.want_pool[s.tables[m][pos / c.page_size] * s.layout.page_bytes], pos % c.page_size, &k[m * kv], &s.v[m * kv]);
    AttentionParams p;
    p.layout = s.layout;
    p.pool = s.want_pool.data();
    p.page_table = s.tables[m].data();
    p.q = &q[m * qd];
    p.out = &s.want[m * qd];
    p.q_stride = p.out_stride = qd;
    p.n_heads = c.n_heads;
    p.first_pos = pos;
    p.n_tokens = 1;
    p.window = c.window;
    p.scale = 1.0f / std::sqrt(static_cast<float>(D));
    p.softcap = c.softcap;
    AlignedBytes scratch(ref.attention_scratch_bytes(p, 1));
    for (int h = 0; h < c.n_kv_heads; ++h) ref.attention(p, h, 0, 1, scratch.data());
    for (int h = 0; h < c.n_heads; ++h) {  // |q| |k| bounds the sum of magnitudes; keys are normal, five deviations
      double norm = 0;
      for (int i = 0; i < D; ++i) norm += std::abs(d(q[m * qd + h * D + i]));
      score = std::max(score, 5 * norm);
    }
  }
  const int longest = *std::max_element(positions.begin(), positions.end());
  double score_error = 2 * score / std::sqrt(static_cast<double>(D)) * (static_cast<double>(D) + 8) * kEps;
  if (c.softcap > 0) score_error += 16 * kEps * d(c.softcap);
  s.bound = 6 * (2 * score_error + (std::min(longest, 4000) + 40) * kEps);
  return s;
}

struct Result {
  std::vector<float> out;
  std::vector<uint8_t> blocks, pool;
};

struct How {
  bool append = true, quantize = false;
  int spare_parts = 0;  // a graph's room for longer rows
  uint64_t order = 1;
};

// Rows [first, first + n) of the setup in one launch.
Result attend(const Setup& s, int first, int n, const How& how) {
  DeviceRun run(how.order);
  const Case& c = s.c;
  const int64_t qd = int64_t{c.n_heads} * c.head_dim, kv = int64_t{c.n_kv_heads} * c.head_dim;
  std::vector<int32_t> tables, positions, table_of;
  int longest = 0;
  for (int m = n - 1; m >= 0; --m) tables.insert(tables.end(), s.tables[first + m].begin(), s.tables[first + m].end());
  for (int m = 0; m < n; ++m) {
    positions.push_back(s.positions[first + m]);
    table_of.push_back(n - 1 - m);
    longest = std::max(longest, positions.back());
  }
  const DeviceArray<uint8_t> pool(s.pool);
  const DeviceArray<int32_t> device_tables(tables), device_positions(positions), device_table_of(table_of);
  const DeviceArray<float> q(&s.q[first * qd], n * qd), k(&s.k[first * kv], n * kv), v(&s.v[first * kv], n * kv);
  const DeviceArray<float> cos_sin(&s.cos_sin[first * c.rope_dim], n * std::max(c.rope_dim, 1)), q_norm(s.q_norm), k_norm(s.k_norm);
  const DeviceArray<float> out(n * qd, 0xff);
  const DeviceArray<uint8_t> blocks(device_acts_block_bytes(n, (qd + 31) / 32 * 32));
  PagedAttentionParams p;
  p.layout = s.layout;
  p.pool = pool.get();
  p.page_tables = device_tables.get();
  p.table_of = device_table_of.get();
  p.table_stride = s.table_stride;
  p.positions = device_positions.get();
  p.n_rows = n;
  p.max_parts = longest / kAttentionPartKeys + 1 + how.spare_parts;
  p.n_heads = c.n_heads;
  p.window = c.window;
  p.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.softcap = c.softcap;
  p.q = q.get();
  p.k = k.get();
  p.v = v.get();
  p.q_stride = qd;
  p.kv_stride = kv;
  p.q_norm = c.has_norm ? q_norm.get() : nullptr;
  p.k_norm = c.has_norm ? k_norm.get() : nullptr;
  p.norm_eps = 1e-6f;
  p.cos_sin = cos_sin.get();
  p.cos_sin_stride = c.rope_dim;
  p.rope_dim = c.rope_dim;
  p.neox = c.neox;
  p.append = how.append && attention_may_append(p);
  const DeviceArray<float> records(attention_record_bytes(p) / 4, 0xff);
  const DeviceArray<uint32_t> arrivals(attention_arrival_bytes(p) / 4);
  p.records = records.get();
  p.arrivals = arrivals.get();
  p.out = {qd, nullptr, out.get(), nullptr};
  if (how.quantize) p.out.blocks = blocks.get();
  if (!p.append) run.finish(launch_kv_append(p, nullptr));
  run.finish(launch_paged_attention(p, nullptr));
  for (uint32_t a : arrivals.read()) CHECK(a == 0);
  return {out.read(), blocks.read(), pool.read()};
}

const std::vector<int> kPositions = {70, 0, 15, 16, 33};

}  // namespace

TEST_CASE("device attention agrees with the reference, and leaves its pages") {
  for (const Case& c : kCases) {
    const Setup s = make_setup(c, kPositions);
    const int M = static_cast<int>(kPositions.size());
    const Result got = attend(s, 0, M, {});
    WorstError worst(std::string("device attention, ") + c.name);
    for (size_t i = 0; i < s.want.size(); ++i) worst.add(d(got.out[i]), d(s.want[i]), s.bound, static_cast<int64_t>(i));
    worst.check();
    INFO(c.name);
    // Rotated keys differ from the reference's by a rounding of float: one step of the page's type at most.
    size_t n_different = 0;
    for (size_t i = 0; i < got.pool.size(); ++i) n_different += got.pool[i] != s.want_pool[i];
    CHECK(n_different <= static_cast<size_t>(M * c.n_kv_heads * c.head_dim) / 20 + (c.rope_dim ? 2 : 0));
    if (c.rope_dim == 0) CHECK(n_different == 0);
  }
}

TEST_CASE("device attention has one result for every batch, split and order") {
  for (const Case& c : kCases) {
    const Setup s = make_setup(c, kPositions);
    const int64_t qd = int64_t{c.n_heads} * c.head_dim;
    const Result whole = attend(s, 0, 5, {});
    INFO(c.name);
    CHECK(same_bits(attend(s, 0, 5, {.order = 2}).out, whole.out));
    const Result apart = attend(s, 0, 5, {.append = false, .spare_parts = 2, .order = 3});
    CHECK(same_bits(apart.out, whole.out));
    CHECK(apart.pool == whole.pool);
    for (int m : {0, 2}) {
      const Result one = attend(s, m, 1, {.order = 4});
      CHECK(same_bits(one.out, {whole.out.begin() + m * qd, whole.out.begin() + (m + 1) * qd}));
    }
  }
}

TEST_CASE("rows of several parts") {
  const Case cases[] = {
      {"f16", KvType::kF16, 64, 16, 1, 3, 0, 0, false, true, 64},
      {"window over two parts", KvType::kF16, 32, 32, 2, 4, 300, 20.0f, false, true, 32},
      {"q8_0", KvType::kQ8_0, 32, 16, 1, 2, 0, 0, false, true, 32},
  };
  for (const Case& c : cases) {
    const Setup s = make_setup(c, {3 * kAttentionPartKeys + 90, 40, kAttentionPartKeys, kAttentionPartKeys - 1});
    INFO(c.name);
    const Result whole = attend(s, 0, 4, {});
    WorstError worst(std::string("device attention in parts, ") + c.name);
    for (size_t i = 0; i < s.want.size(); ++i) worst.add(d(whole.out[i]), d(s.want[i]), s.bound, static_cast<int64_t>(i));
    worst.check();
    for (uint64_t order : {2, 3, 4}) CHECK(same_bits(attend(s, 0, 4, {.spare_parts = 1, .order = order}).out, whole.out));
    const int64_t qd = int64_t{c.n_heads} * c.head_dim;
    CHECK(same_bits(attend(s, 0, 1, {.append = false}).out, {whole.out.begin(), whole.out.begin() + qd}));
  }
}

TEST_CASE("attention's results as quantized activations") {
  for (size_t i : {size_t{0}, size_t{1}, size_t{8}}) {
    const Setup s = make_setup(kCases[i], kPositions);
    const Result floats = attend(s, 0, 5, {}), blocks = attend(s, 0, 5, {.quantize = true});
    CHECK(blocks.blocks == quantized(floats.out, int64_t{kCases[i].n_heads} * kCases[i].head_dim));
  }
}

TEST_CASE("padding rows touch nothing") {
  Setup s = make_setup(kCases[0], {20, 30});
  s.positions[1] = -1;
  const Result got = attend(s, 0, 2, {});
  const size_t qd = 9 * 64;
  for (size_t i = qd; i < 2 * qd; ++i) REQUIRE(std::isnan(got.out[i]));
  const uint8_t* page = &got.pool[s.tables[1][1] * s.layout.page_bytes];
  CHECK(memcmp(page, &s.pool[s.tables[1][1] * s.layout.page_bytes], s.layout.page_bytes) == 0);
}

TEST_CASE("what launch_paged_attention refuses") {
  DeviceRun run;
  const DeviceArray<uint8_t> pool(1 << 20);
  const DeviceArray<int32_t> ints(64);
  const DeviceArray<float> floats(1 << 14);
  const DeviceArray<uint32_t> arrivals(64);
  PagedAttentionParams good;
  good.layout = {KvType::kF16, 16, 2, 64, 8192, 0};
  good.pool = pool.get();
  good.page_tables = good.positions = ints.get();
  good.table_stride = 1;
  good.n_rows = 1;
  good.n_heads = 4;
  good.q = good.k = good.v = floats.get();
  good.q_stride = 256;
  good.kv_stride = 128;
  good.out = {256, nullptr, floats.get() + 4096, nullptr};
  run.finish(launch_kv_append(good, nullptr));
  run.finish(launch_paged_attention(good, nullptr));
  const auto refused = [&](auto change) {
    PagedAttentionParams p = good;
    change(p);
    CHECK(launch_paged_attention(p, nullptr) == cudaErrorInvalidValue);
  };
  refused([](auto& p) { p.layout.type = KvType::kF32; });
  refused([](auto& p) { p.layout.page_size = 8; });
  refused([](auto& p) { p.layout.head_dim = 520; });
  refused([](auto& p) { p.layout.head_dim = 60; });
  refused([](auto& p) { p.n_heads = 5; });
  refused([](auto& p) { p.pool += 32; });
  refused([](auto& p) { p.max_parts = 2; });  // no records
  refused([](auto& p) { p.rope_dim = 66; });
  refused([](auto& p) { p.rope_dim = 64; });  // no cos_sin
  refused([](auto& p) { p.out.n_cols = 128; });
  refused([](auto& p) { p.out.floats = nullptr; });
  refused([](auto& p) { p.n_rows = 0; });
  refused([](auto& p) { p.append = true, p.k = nullptr; });
  refused([](auto& p) { p.append = true, p.n_heads = 32, p.q_stride = 2048, p.out.n_cols = 2048; });
}
