#include "tests/device_kernels/device_fixture.h"

#include <cstring>

#include "kernels/act_block.h"
#include "kernels/tile_layout.h"

namespace tandem {

DeviceRun::DeviceRun([[maybe_unused]] uint64_t order) {
#if defined(TANDEM_SIMT)
  simt::reset();
  simt::options().order_seed = order;
#endif
}

DeviceRun::~DeviceRun() {
#if defined(TANDEM_SIMT)
  for (const simt::Report& r : simt::reports()) {
    UNSCOPED_INFO(r.text);
    CHECK(simt::fault_name(r.fault) == std::string("none"));
  }
#endif
}

void DeviceRun::finish(cudaError_t launched) {
  CHECK(std::string(cudaGetErrorName(launched)) == "cudaSuccess");
  CHECK(std::string(cudaGetErrorName(cudaDeviceSynchronize())) == "cudaSuccess");
#if defined(TANDEM_SIMT)
  for (const simt::Report& r : simt::reports()) FAIL_CHECK(r.text);
#endif
}

DeviceMatrix device_matrix(GgmlType type, const uint8_t* rows, int64_t n_rows, int64_t n_cols) {
  std::vector<uint8_t> packed(tiled::packed_bytes(type, n_rows, n_cols));
  REQUIRE(!packed.empty());
  tiled::pack_tiles(type, rows, n_rows, n_cols, 0, (n_rows + kTileRows - 1) / kTileRows, packed.data());
  DeviceMatrix m{DeviceArray<uint8_t>(packed), {type, n_rows, n_cols, nullptr}};
  m.matrix.data = m.bytes.get();
  return m;
}

std::vector<uint8_t> quantized(const std::vector<float>& x, int64_t n_cols) {
  const size_t stride = act_row_bytes_of(n_cols), n_rows = x.size() / static_cast<size_t>(n_cols);
  std::vector<uint8_t> out(stride * n_rows);
  for (size_t m = 0; m < n_rows; ++m) {
    kernel_table_ref().quantize_act(x.data() + m * static_cast<size_t>(n_cols), n_cols, out.data() + m * stride);
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace tandem
