// The library for dense weights: its products, what is said where it is missing, choices that outlive a start.
#include "cpu/dense_library.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "cpu/dense_choice.h"
#include "cpu/isa_select.h"
#include "cpu/packed_model.h"
#include "tests/cpu/tiny_model.h"

namespace tandem {
namespace {

const DenseLibrary* library_or_skip() {
  const auto library = DenseLibrary::open();
  if (library.ok()) return *library;
  WARN("not tested: " << library.status().message());
  return nullptr;
}

const KernelTable& best_kernels() { return *runnable_columns().back(); }

struct TempFile {
  char path[32] = "/tmp/tandem_dense_XXXXXX";
  TempFile() { close(mkstemp(path)); }
  ~TempFile() { unlink(path); }
  UniqueFd open_for(int flags) const { return UniqueFd(::open(path, flags | O_CLOEXEC)); }
};

// The best column, and the most rows its own product for dense weights was given at once.
std::atomic<int64_t> most_rows{0};
KernelTable watched_kernels() {
  KernelTable table = best_kernels();
  table.matmul_dense = [](const PackedMatrix& w, int64_t begin, int64_t end, const float* x, int64_t ldx, int64_t M, float* y,
                          int64_t ldy) {
    for (int64_t before = most_rows; before < M && !most_rows.compare_exchange_weak(before, M);) {
    }
    best_kernels().matmul_dense(w, begin, end, x, ldx, M, y, ldy);
  };
  return table;
}

// [N][K] weights as the file has them.
std::vector<uint8_t> rows_of(GgmlType type, const std::vector<float>& values) {
  if (type == GgmlType::kF32) {
    std::vector<uint8_t> bytes(values.size() * 4);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  std::vector<uint16_t> halves;
  for (float v : values) {
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    halves.push_back(type == GgmlType::kBF16 ? static_cast<uint16_t>(bits >> 16) : float_to_half(v));
  }
  std::vector<uint8_t> bytes(halves.size() * 2);
  std::memcpy(bytes.data(), halves.data(), bytes.size());
  return bytes;
}

}  // namespace

TEST_CASE("a library that cannot serve is said") {
  const auto none = DenseLibrary::open_file("libtandem_no_such_library.so.1");
  REQUIRE(none.status().code() == StatusCode::kUnavailable);
  CHECK(none.status().message().find("oneDNN cannot be opened: ") == 0);
  const auto other = DenseLibrary::open_file("libm.so.6");
  REQUIRE(other.status().code() == StatusCode::kUnavailable);
  CHECK(other.status().message() == "libm.so.6 lacks dnnl_version");
}

TEST_CASE("products by the library are those of the reference, within the rounding of their sums") {
  const DenseLibrary* library = library_or_skip();
  if (library == nullptr) return;
  constexpr int64_t N = 1100, K = 224, M = LibraryMatrix::kRows;  // three slices
  const int64_t ldx = float_act_stride(K);
  std::mt19937 gen(5);
  std::normal_distribution<float> normal;
  std::vector<float> w(N * K), x(static_cast<size_t>(M * ldx));
  for (float& v : w) v = normal(gen);
  for (float& v : x) v = normal(gen);
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16}) {
    const KernelTable& kernels = best_kernels();
    const std::vector<uint8_t> rows = rows_of(type, w);
    auto packed = Arena::allocate(kernels.packed_bytes(type, N, K), "a test");
    REQUIRE(packed.ok());
    kernels.pack_tiles(type, rows.data(), N, K, 0, (N + kTileRows - 1) / kTileRows, packed->data());
    const PackedMatrix matrix = {type, N, K, packed->data()};
    const auto made = library->make(matrix, kernels, ldx);
    REQUIRE(made.status().message() == "");
    CHECK((*made)->n_slices() == 3);
    std::vector<float> y(M * N, NAN), row(K);
    for (int s = 0; s < (*made)->n_slices(); ++s) REQUIRE((*made)->multiply(s, x.data(), y.data()).message() == "");
    double worst = 0;
    for (int64_t n = 0; n < N; ++n) {
      kernels.packed_row(matrix, n, row.data());
      for (int64_t m = 0; m < M; ++m) {
        double want = 0, magnitude = 0;
        for (int64_t k = 0; k < K; ++k) {
          const double product = static_cast<double>(row[k]) * static_cast<double>(x[m * ldx + k]);
          want += product, magnitude += std::abs(product);
        }
        const double allowed = magnitude * (K * 0x1p-24 + (type == GgmlType::kBF16 ? 0x1p-9 : 0));
        const double error = std::abs(static_cast<double>(y[m * N + n]) - want) / allowed;
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
    }
    CAPTURE(static_cast<int>(type));
    CHECK(worst <= 1);
  }
  CHECK(library->make({GgmlType::kQ8_0, 32, 32, nullptr}, best_kernels(), 48).status().code() == StatusCode::kUnavailable);
}

TEST_CASE("choices are measured once, stored with the packed weights and followed") {
  const DenseLibrary* library = library_or_skip();
  if (library == nullptr) return;
  const KernelTable& kernels = best_kernels();
  const TinyModel model = make_tiny_model(TinyKind::kVaried, GgmlType::kF16, 3);
  OmpTeam team(2);
  const std::atomic<bool> go_on{false};
  TempFile file;
  std::vector<uint32_t> first;
  PackOptions options;
  options.library = library;
  {
    PackCache cache({UniqueFd(), file.open_for(O_RDWR), false, false}, "stamp");
    options.cache = &cache;
    const auto packed = PackedModel::pack(model.weights, kernels, &team, options);
    REQUIRE(packed.ok());
    first = cache.choices();
    REQUIRE(!first.empty());
    for (uint32_t choice : first) CHECK((choice / 4 == library->version() && choice % 2 == 1));
    REQUIRE(cache.store(go_on).ok());
  }
  {
    PackCache cache({file.open_for(O_RDONLY), UniqueFd(), false, false}, "stamp");
    options.cache = &cache;
    REQUIRE(PackedModel::pack(model.weights, kernels, &team, options).ok());
    CHECK(cache.is_hit());
    CHECK(cache.choices() == first);
  }
  // All to the library, as if measured so: a start follows what is stored, and the texts' likelihoods stay.
  // (Where the measurement chose that, there is nothing to store.)
  TempFile forced;
  const std::vector<uint32_t> all_librarys(first.size(), library->version() * 4 + 3);
  const bool is_so_already = first == all_librarys;
  {
    PackCache cache({file.open_for(O_RDONLY), forced.open_for(O_RDWR), false, false}, "stamp");
    options.cache = &cache;
    options.library = nullptr;
    auto packed = PackedModel::pack(model.weights, kernels, &team, options);
    REQUIRE(packed.ok());
    cache.set_choices(kernels.isa, all_librarys);
    REQUIRE(cache.has_kept() == !is_so_already);
    if (!is_so_already) REQUIRE(cache.store(go_on).ok());
  }
  PackCache cache({(is_so_already ? file : forced).open_for(O_RDONLY), UniqueFd(), false, false}, "stamp");
  const KernelTable watched = watched_kernels();
  CpuBackendOptions serving;
  serving.kernels = &watched;
  serving.n_threads = 2;
  const int n = 150;  // two blocks of the library's rows and a rest of ours
  const auto logits_of = [&](const CpuBackendOptions& o) {
    auto backend = make_backend(model, o, 32);
    CAPTURE(backend->description());
    CHECK((backend->description().find("oneDNN") != std::string::npos) == (o.pack.library != nullptr));
    PageDealer dealer(model.config, 32, 3);
    most_rows = 0;
    return run_chunked(backend.get(), dealer.deal(random_tokens(n, model.config.vocab_size, 9), 16), n);
  };
  const std::vector<float> ours = logits_of(serving);
  CHECK(most_rows > LibraryMatrix::kRows);
  serving.pack.cache = &cache;
  serving.pack.library = library;
  const std::vector<float> librarys = logits_of(serving);
  CHECK(most_rows == n % LibraryMatrix::kRows);  // the rest; the library had the others
  REQUIRE(ours.size() == librarys.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(ours[i]) - static_cast<double>(librarys[i])));
    largest = std::max(largest, std::abs(static_cast<double>(ours[i])));
  }
  CHECK(worst < 1e-2 * largest);  // half precision of K and V may round the other way
}

}  // namespace tandem
