// What the kernels ask of memory, counted by the stand-in: 32-byte sectors a warp access of weights and K/V against the fewest
// that hold the bytes asked for, and every byte fetched once a launch. A card counts nothing: there these are skipped.
#include "tests/device_kernels/device_fixture.h"

#if defined(TANDEM_SIMT)
#include <cmath>
#include <iostream>
#include <utility>

#include "kernels/act_block.h"
#include "kernels/kv_layout.h"
#include "kernels/matvec.cuh"
#include "kernels/paged_attention.cuh"
#include "kernels/tile_layout.h"
#include "tests/kernels/random_matrix.h"
#include "tests/kernels/tested_column.h"

using namespace tandem;

namespace {

struct Sum {
  double sectors = 0, least = 0, footprint = 0, asked = 0, accesses = 0;
};
Sum reads_of(const char* label) {
  Sum s;
  for (const simt::Traffic& t : simt::traffic()) {
    if (t.allocation != label) continue;
    s.sectors += static_cast<double>(t.read_sectors);
    s.least += static_cast<double>(t.read_least);
    s.footprint += static_cast<double>(t.footprint_bytes);
    s.asked += static_cast<double>(t.read_bytes);
    s.accesses += static_cast<double>(t.reads);
  }
  return s;
}

void print(const std::string& what, const Sum& s, double bytes) {
  if (!std::getenv("TANDEM_PRINT_ERRORS")) return;
  std::cout << what << ": " << s.sectors / s.least << " of the fewest sectors, " << s.footprint / bytes
            << " of the bytes fetched, " << 32 * s.sectors / bytes << " of them asked of the cache\n";
}

// is_lean: of the lean form of a matrix of this type. bytes: what of the matrix there is to read.
Sum weight_traffic(const char* type, bool is_lean, DotPath path, int M, int64_t N, int64_t K, double* bytes) {
  DeviceRun run;
  const RandomMatrix m = random_matrix(type, N, K, 3);
  const DeviceMatrix w = device_matrix(m.traits->type, m.rows.data(), N, K);
  const std::vector<float> x = random_floats(M * K, 1.0f, 4);
  const DeviceArray<uint8_t> blocks(quantized(x, K));
  const DeviceArray<float> floats(x), out(M * N);
  simt::label(w.bytes.get(), "weights");
  simt::options().counts_traffic = true;
  simt::clear_traffic();
  MatvecParams p;
  p.acts = {K, blocks.get(), floats.get(), nullptr};
  p.n_rows = M;
  p.n_products = 1;
  p.products[0] = {is_lean ? lean_form(w.matrix) : w.matrix, nullptr, out.get(), N};
  run.finish(launch_matvec(p, path, nullptr));
  *bytes = static_cast<double>(tiled::packed_bytes(p.products[0].weight.type, N, K));
  return reads_of("weights");
}

}  // namespace

TEST_CASE("weights are read in whole sectors, each once a launch") {
  for (const char* type : kColumnTypes) {
    for (DotPath path : {DotPath::kDp4a, DotPath::kMma, DotPath::kFloat}) {
      if (!matvec_serves(quant_traits_by_name(type)->type, path)) continue;
      for (int M : {1, 7}) {
        double bytes = 0;
        const Sum s = weight_traffic(type, false, path, M, 64, 1024, &bytes);
        INFO(type << " path " << static_cast<int>(path) << " M " << M);
        print(std::string(type) + " path " + std::to_string(static_cast<int>(path)) + " M " + std::to_string(M), s, bytes);
        REQUIRE(s.least > 0);
        CHECK(s.sectors <= 1.1 * s.least);
        CHECK(s.footprint <= bytes);
        CHECK(s.footprint >= 0.9 * bytes);  // a group's unused scales aside
      }
    }
  }
}

TEST_CASE("of a nested matrix the lean form reads the first plane alone, whatever the shape") {
  for (DotPath path : {DotPath::kDp4a, DotPath::kMma, DotPath::kFloat}) {
    for (auto [N, K] : {std::pair{int64_t{64}, int64_t{1024}}, {37, 416}, {16, 96}}) {
      double bytes = 0, all = 0;
      const Sum s = weight_traffic("Q8_0 nested", true, path, 1, N, K, &bytes);
      const Sum whole = weight_traffic("Q8_0 nested", false, path, 1, N, K, &all);
      INFO("path " << static_cast<int>(path) << " [" << N << "][" << K << "]: " << s.footprint << " of " << bytes << " bytes, of all " << all);
      CHECK(s.sectors <= 1.1 * s.least);
      CHECK(whole.sectors <= 1.1 * whole.least);
      CHECK(s.footprint <= bytes);
      CHECK(s.footprint < 0.56 * whole.footprint);
    }
  }
}

TEST_CASE("keys and values are read in whole sectors, each once a launch") {
  for (KvType type : {KvType::kF16, KvType::kQ8_0}) {
    for (int page_size : {16, 32}) {
      for (int head_dim : {64, 80, 128}) {
        DeviceRun run;
        PagedAttentionParams p;
        p.layout = {type, page_size, 2, head_dim, 0, 0};
        p.layout.page_bytes = kernel_table_ref().kv_layer_bytes(p.layout);
        const int n_pages = 256 / page_size, qd = 4 * head_dim;
        const DeviceArray<uint8_t> pool(p.layout.page_bytes * static_cast<size_t>(n_pages));
        std::vector<int32_t> table(static_cast<size_t>(n_pages));
        for (int i = 0; i < n_pages; ++i) table[static_cast<size_t>(i)] = (i * 5 + 3) % n_pages;
        const DeviceArray<int32_t> tables(table), positions(std::vector<int32_t>{255});
        const DeviceArray<float> q(random_floats(static_cast<size_t>(qd), 1.0f, 5)), out(static_cast<size_t>(qd));
        p.pool = pool.get();
        p.page_tables = tables.get();
        p.table_stride = n_pages;
        p.positions = positions.get();
        p.n_rows = 1;
        p.n_heads = 4;
        p.q = q.get();
        p.q_stride = qd;
        p.out = {qd, nullptr, out.get(), nullptr};
        simt::label(pool.get(), "pages");
        simt::options().counts_traffic = true;
        simt::clear_traffic();
        run.finish(launch_paged_attention(p, nullptr));
        const Sum s = reads_of("pages");
        const auto bytes = static_cast<double>(pool.size());
        const std::string what = std::string(type == KvType::kF16 ? "f16" : "q8_0") + " pages of " +
                                 std::to_string(page_size) + ", heads of " + std::to_string(head_dim);
        INFO(what);
        print(what, s, bytes);
        REQUIRE(s.least > 0);
        CHECK(s.sectors <= 1.1 * s.least);
        CHECK(s.footprint <= bytes);
        CHECK(s.footprint >= 0.95 * bytes);
      }
    }
  }
}
#endif
