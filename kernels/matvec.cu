// Checks products and shares them out to the kernels of their types.
#include "kernels/matvec.cuh"

#include "kernels/matvec_launch.cuh"

namespace tandem {
namespace {

using Launch = cudaError_t (*)(const MatvecArgs&, DotPath, int64_t, int, cudaStream_t);

Launch launch_of(GgmlType type) {
  switch (type) {
#define TANDEM_CASE(name) \
  case GgmlType::name:    \
    return launch_matvec_##name;
    TANDEM_DEVICE_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return nullptr;
  }
}

bool is_aligned(const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

bool are_acts_good(const DeviceActs& a) {
  return a.n_cols > 0 && a.n_cols % QK == 0 && is_aligned(a.blocks, 64) && is_aligned(a.floats, 64);
}

bool is_good(const MatvecParams& p, DotPath path) {
  const bool reads_floats = path == DotPath::kFloat;
  if (p.n_rows < 1 || p.n_products < 1 || p.n_products > 3 || !are_acts_good(p.acts)) return false;
  if (!(reads_floats ? static_cast<const void*>(p.acts.floats) : p.acts.blocks)) return false;
  for (int i = 0; i < p.n_products; ++i) {
    const MatvecProduct& w = p.products[i];
    if (!w.weight.data || !is_aligned(w.weight.data, 64) || w.weight.n_rows < 1) return false;
    if (w.weight.n_cols != p.acts.n_cols) return false;
    if (p.end == MatvecEnd::kStore && (!w.out || w.out_stride < w.weight.n_rows)) return false;
  }
  if (p.end == MatvecEnd::kStore) return true;
  const DeviceActs& next = p.next;
  const bool keeps = next.blocks || next.floats;
  if (p.products[0].weight.n_rows % QK != 0) return false;
  if ((keeps || next.sum_squares) && (!are_acts_good(next) || next.n_cols != p.products[0].weight.n_rows)) return false;
  if (p.end == MatvecEnd::kResidual) return p.n_products == 1 && p.residual && keeps == (next.sum_squares != nullptr);
  return p.n_products == 2 && p.products[1].weight.n_rows == p.products[0].weight.n_rows && keeps &&
         !next.sum_squares && !p.products[0].bias && !p.products[1].bias;
}

int n_multiprocessors() {
  int device = 0, n = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 1;
  return cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) == cudaSuccess && n > 0 ? n : 1;
}

// Warps of a block of threads: as many as there are slices, until the card is full. No bits depend on it.
int n_threads(DotPath path, int64_t blocks, int n_items) {
  const int most = (path == DotPath::kMma ? kMmaThreads : kRowThreads) / 32;
  const bool is_full = blocks * most > int64_t{48} * n_multiprocessors();  // 48 warps: what the smallest SM holds, or so
  const int wanted = is_full ? most / 2 : most;
  return 32 * (n_items < wanted ? n_items : wanted);
}

}  // namespace

bool matvec_serves(GgmlType type, DotPath path) {
  const TileShape* s = tile_shape(type);
  return s && launch_of(type) && (path == DotPath::kFloat || !is_plain(*s));
}

cudaError_t launch_matvec(const MatvecParams& p, DotPath path, cudaStream_t stream, int* n_launches) {
  if (!is_good(p, path)) return cudaErrorInvalidValue;
  for (int i = 0; i < p.n_products; ++i) {
    if (!matvec_serves(p.products[i].weight.type, path)) return cudaErrorNotSupported;
  }
  if (p.end == MatvecEnd::kGated && p.products[0].weight.type != p.products[1].weight.type) return cudaErrorNotSupported;

  MatvecArgs args = {};
  args.acts = p.acts;
  args.act_rows = p.act_rows;
  args.act_row_bytes = path == DotPath::kFloat ? p.acts.n_cols * int64_t{sizeof(float)}
                                               : static_cast<int64_t>(act_row_bytes_of(p.acts.n_cols));
  args.n_rows = p.n_rows;
  args.n_blocks = static_cast<int>(p.acts.n_cols / QK);
  args.norm_eps = p.norm_eps;
  args.softcap = p.softcap;
  args.end = p.end;
  args.gate = p.gate;
  args.residual = p.residual;
  args.next_norm = p.next_norm;
  args.next = p.next;
  bool is_done[3] = {};
  for (int i = 0; i < p.n_products; ++i) {
    if (is_done[i]) continue;
    const GgmlType type = p.products[i].weight.type;
    int n = 0;
    int64_t pairs = 0;
    for (int j = i; j < p.n_products; ++j) {
      if (p.products[j].weight.type != type) continue;
      is_done[j] = true;
      const MatvecProduct& w = p.products[j];
      const int64_t tiles = (w.weight.n_rows + kTileRows - 1) / kTileRows;
      args.products[n] = {device_tiles(w.weight), w.bias, w.out, w.out_stride, w.weight.n_rows, tiles, (tiles + 1) / 2};
      pairs += p.end == MatvecEnd::kGated && n == 1 ? 0 : args.products[n].n_pairs;
      ++n;
    }
    if (pairs > kMostPairs) return cudaErrorInvalidValue;
    const int n_items = (args.n_blocks + 7) / 8 * (p.end == MatvecEnd::kGated ? 4 : 2);
    const int threads = n_threads(path, pairs, n_items);
    const cudaError_t error = launch_of(type)(args, path, pairs, threads, stream);
    if (error != cudaSuccess) return error;
    if (n_launches) ++*n_launches;
  }
  return cudaSuccess;
}

}  // namespace tandem
