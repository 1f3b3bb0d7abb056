#include "cpu/dense_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/arena.h"
#include "cpu/dense_library_abi.h"

namespace tandem {
namespace {

constexpr const char* kName = "libdnnl.so.2";
constexpr int64_t kSliceRows = 512;  // of the weights: with kRows tokens some 0.5 ms, so that all threads find work

std::string last_dl_error() {
  const char* text = dlerror();
  return text ? text : "unknown error";
}

uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN stays one
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Its work is shared out by us: one thread a call. Of the calling thread, while it lives.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }

 private:
  int before_;
};

}  // namespace

// --- the library ------------------------------------------------------------------------------------

struct DenseLibrary::Api {
  void* handle = nullptr;
  dnnl_abi::Functions f;
  dnnl_abi::Handle engine = nullptr;
  uint32_t version = 0;
  ~Api() {
    if (engine) f.engine_destroy(engine);
    if (handle) dlclose(handle);
  }
};

DenseLibrary::DenseLibrary(std::unique_ptr<Api> api) : api_(std::move(api)) {}
DenseLibrary::~DenseLibrary() = default;

Result<const DenseLibrary*> DenseLibrary::open() {
  // Never closed: it has threads' memory and code of its own until the process ends.
  static const auto* opened = new Result<std::unique_ptr<DenseLibrary>>(open_file(kName));
  if (!opened->ok()) return opened->status();
  return static_cast<const DenseLibrary*>((*opened)->get());
}

Result<std::unique_ptr<DenseLibrary>> DenseLibrary::open_file(const char* name) {
  auto api = std::make_unique<Api>();
  api->handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!api->handle) return unavailable("oneDNN cannot be opened: " + last_dl_error());
  const auto find = [&](const char* symbol) { return dlsym(api->handle, symbol); };
  if (const char* missing = api->f.resolve(find)) return unavailable(fmt::format("{} lacks {}", name, missing));
  const dnnl_abi::Version* v = api->f.version();
  api->version = static_cast<uint32_t>(v->major * 10000 + v->minor * 100 + v->patch);
  if (v->major != 2 || v->minor < 4)
    return unavailable(fmt::format("{} is version {}.{}.{}, 2.4 or later of 2 is needed", name, v->major, v->minor, v->patch));
  if (int err = api->f.engine_create(&api->engine, dnnl_abi::kCpu, 0); err != 0)
    return unavailable(fmt::format("{} makes no engine: error {}", name, err));
  return std::unique_ptr<DenseLibrary>(new DenseLibrary(std::move(api)));
}

uint32_t DenseLibrary::version() const { return api_->version; }
std::string DenseLibrary::name() const {
  const uint32_t v = api_->version;
  return fmt::format("oneDNN {}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

int64_t DenseLibrary::copy_bytes(GgmlType type, int64_t n_rows, int64_t n_cols) {
  if (type == GgmlType::kBF16) return 2 * n_rows * n_cols;
  // It has no products of half precision: those become floats.
  return type == GgmlType::kF32 || type == GgmlType::kF16 ? 4 * n_rows * n_cols : 0;
}

// --- a matrix ---------------------------------------------------------------------------------------

struct LibraryMatrix::Impl {
  struct Slice {
    int64_t first_row = 0;
    dnnl_abi::Handle primitive = nullptr, weights = nullptr;
    dnnl_abi::MemoryDesc x, y;
    Arena memory;
  };
  const dnnl_abi::Functions& f;
  const dnnl_abi::Handle engine;
  const bool is_bf16;
  const int64_t n_rows, n_cols, ldx;
  std::vector<Slice> slices;

  Impl(const DenseLibrary& library, const PackedMatrix& w, int64_t stride)
      : f(library.api_->f), engine(library.api_->engine), is_bf16(w.type == GgmlType::kBF16), n_rows(w.n_rows),
        n_cols(w.n_cols), ldx(stride) {}
  ~Impl() {
    for (Slice& s : slices) {
      if (s.weights) f.memory_destroy(s.weights);
      if (s.primitive) f.primitive_destroy(s.primitive);
    }
  }

  static Status check(int err, const char* what) {
    return err == 0 ? ok_status() : unavailable(fmt::format("oneDNN {}: error {}", what, err));
  }
  Status describe(dnnl_abi::MemoryDesc* d, int64_t a, int64_t b, int64_t stride_a, int64_t stride_b, int type) const {
    const dnnl_abi::Dims dims = {a, b}, strides = {stride_a, stride_b};
    return check(f.memory_desc_init_by_strides(d, 2, dims, type, strides), "describes no matrix");
  }
  Status run(dnnl_abi::Handle primitive, const std::vector<dnnl_abi::Argument>& arguments) const {
    dnnl_abi::Handle stream = nullptr;
    CHECK_OK(check(f.stream_create(&stream, engine, dnnl_abi::kDefaultStream), "makes no stream"));
    int err = f.primitive_execute(primitive, stream, static_cast<int>(arguments.size()), arguments.data());
    if (err == 0) err = f.stream_wait(stream);
    f.stream_destroy(stream);
    return check(err, "computes nothing");
  }

  Status add_slice(const PackedMatrix& w, const KernelTable& kernels, int64_t first_row, int64_t count) {
    slices.emplace_back();
    Slice& s = slices.back();
    s.first_row = first_row;
    const int type = is_bf16 ? dnnl_abi::kBf16 : dnnl_abi::kF32;
    CHECK_OK(describe(&s.x, kRows, n_cols, is_bf16 ? n_cols : ldx, 1, type));
    CHECK_OK(describe(&s.y, kRows, count, n_rows, 1, dnnl_abi::kF32));
    dnnl_abi::MemoryDesc any, plain;
    const dnnl_abi::Dims dims = {n_cols, count};
    CHECK_OK(check(f.memory_desc_init_by_tag(&any, 2, dims, type, dnnl_abi::kAnyFormat), "describes no weights"));
    CHECK_OK(describe(&plain, n_cols, count, 1, n_cols, dnnl_abi::kF32));
    dnnl_abi::OpDesc op;
    CHECK_OK(check(f.matmul_desc_init(&op, &s.x, &any, nullptr, &s.y), "describes no product"));
    dnnl_abi::Handle chosen = nullptr;
    CHECK_OK(check(f.primitive_desc_create(&chosen, &op, nullptr, engine, nullptr), "has no such product"));
    const auto* stored = static_cast<const dnnl_abi::MemoryDesc*>(f.primitive_desc_query_md(chosen, dnnl_abi::kWeightsDesc, 0));
    Status status = check(f.primitive_create(&s.primitive, chosen), "makes no product");
    if (status.ok()) status = store(w, kernels, plain, *stored, first_row, count, &s);
    f.primitive_desc_destroy(chosen);
    return status;
  }

  Status store(const PackedMatrix& w, const KernelTable& kernels, const dnnl_abi::MemoryDesc& plain,
               const dnnl_abi::MemoryDesc& stored, int64_t first_row, int64_t count, Slice* s) const {
    std::vector<float> rows(static_cast<size_t>(count * n_cols));
    for (int64_t r = 0; r < count; ++r) kernels.packed_row(w, first_row + r, rows.data() + r * n_cols);
    CHECK_ASSIGN(s->memory, Arena::allocate(f.memory_desc_get_size(&stored), "dense weights for oneDNN"));
    CHECK_OK(check(f.memory_create(&s->weights, &stored, engine, s->memory.data()), "takes no weights"));
    dnnl_abi::Handle from = nullptr, desc = nullptr, reorder = nullptr;
    int err = f.memory_create(&from, &plain, engine, rows.data());
    if (err == 0) err = f.reorder_primitive_desc_create(&desc, &plain, engine, &stored, engine, nullptr);
    if (err == 0) err = f.primitive_create(&reorder, desc);
    Status status = check(err, "has no way to store the weights");
    if (status.ok()) status = run(reorder, {{dnnl_abi::kFrom, from}, {dnnl_abi::kTo, s->weights}});
    if (reorder) f.primitive_destroy(reorder);
    if (desc) f.primitive_desc_destroy(desc);
    if (from) f.memory_destroy(from);
    return status;
  }
};

LibraryMatrix::LibraryMatrix(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LibraryMatrix::~LibraryMatrix() = default;
int LibraryMatrix::n_slices() const { return static_cast<int>(impl_->slices.size()); }

Status LibraryMatrix::multiply(int slice, const float* x, float* y) const {
  const OneThread one;
  const Impl& m = *impl_;
  const Impl::Slice& s = m.slices[static_cast<size_t>(slice)];
  const void* input = x;
  if (m.is_bf16) {
    thread_local std::vector<uint16_t> rounded;
    rounded.resize(static_cast<size_t>(kRows * m.n_cols));
    for (int64_t r = 0; r < kRows; ++r)
      std::transform(x + r * m.ldx, x + r * m.ldx + m.n_cols, rounded.data() + r * m.n_cols, to_bf16);
    input = rounded.data();
  }
  dnnl_abi::Handle from = nullptr, to = nullptr;
  int err = m.f.memory_create(&from, &s.x, m.engine, const_cast<void*>(input));
  if (err == 0) err = m.f.memory_create(&to, &s.y, m.engine, y + s.first_row);
  Status status = Impl::check(err, "takes no activations");
  if (status.ok()) status = m.run(s.primitive, {{dnnl_abi::kSource, from}, {dnnl_abi::kWeights, s.weights}, {dnnl_abi::kDestination, to}});
  if (from) m.f.memory_destroy(from);
  if (to) m.f.memory_destroy(to);
  return status;
}

Result<std::unique_ptr<LibraryMatrix>> DenseLibrary::make(const PackedMatrix& w, const KernelTable& kernels,
                                                          int64_t ldx) const {
  if (copy_bytes(w.type, w.n_rows, w.n_cols) == 0)
    return unavailable("oneDNN serves F32, F16 and BF16 weights alone");
  const OneThread one;
  auto impl = std::make_unique<LibraryMatrix::Impl>(*this, w, ldx);
  const int64_t n_slices = (w.n_rows + kSliceRows - 1) / kSliceRows;
  const int64_t each = ((w.n_rows + n_slices - 1) / n_slices + 63) / 64 * 64;
  for (int64_t first = 0; first < w.n_rows; first += each)
    CHECK_OK(impl->add_slice(w, kernels, first, std::min(each, w.n_rows - first)));
  return std::unique_ptr<LibraryMatrix>(new LibraryMatrix(std::move(impl)));
}

}  // namespace tandem
