#include "cpu/dense_choice.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <tuple>

#include "base/clock.h"

namespace tandem {
namespace {

constexpr int64_t kMeasuredRows = 2 * LibraryMatrix::kRows;
constexpr int kRepeats = 3;

// A stored choice: the library's version, then one bit that says it was made and one that says which.
constexpr uint32_t kOurs = 1, kLibrarys = 3;
uint32_t stored(const DenseLibrary& library, bool is_librarys) { return library.version() * 4 + (is_librarys ? kLibrarys : kOurs); }
bool is_valid(const DenseLibrary& library, uint32_t choice) { return choice / 4 == library.version() && choice % 2 == 1; }

template <typename Work>
double best_seconds(OmpTeam* team, Work&& work) {
  int64_t best_us = INT64_MAX;
  for (int i = 0; i < kRepeats; ++i) {
    const int64_t begin = monotonic_us();
    team->run(work);
    best_us = std::min(best_us, std::max<int64_t>(1, monotonic_us() - begin));
  }
  return 1e-6 * static_cast<double>(best_us);
}

}  // namespace

Result<DenseSpeed> measure_dense(const DenseLibrary& library, const PackedMatrix& w, const KernelTable& kernels,
                                 OmpTeam* team) {
  const int64_t ldx = float_act_stride(w.n_cols), n_tiles = (w.n_rows + kTileRows - 1) / kTileRows;
  CHECK_ASSIGN(const auto theirs, library.make(w, kernels, ldx));
  std::vector<float> x(static_cast<size_t>(kMeasuredRows * ldx)), y(static_cast<size_t>(kMeasuredRows * w.n_rows));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * static_cast<float>(i % 201) - 1.0f;
  const int64_t grain = std::max<int64_t>(1, n_tiles / (8 * team->n_threads()));
  const double own = best_seconds(team, [&](TeamMember& t) {
    t.share(n_tiles, grain, [&](int64_t begin, int64_t end) {
      kernels.matmul_dense(w, begin, end, x.data(), ldx, kMeasuredRows, y.data(), w.n_rows);
    });
  });
  std::atomic<bool> has_failed{false};
  const double librarys = best_seconds(team, [&](TeamMember& t) {
    const int64_t n_slices = theirs->n_slices();
    t.share(n_slices * (kMeasuredRows / LibraryMatrix::kRows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / n_slices * LibraryMatrix::kRows;
        if (!theirs->multiply(static_cast<int>(i % n_slices), x.data() + row * ldx, y.data() + row * w.n_rows).ok())
          has_failed = true;
      }
    });
  });
  if (has_failed) return unavailable(library.name() + " computes nothing for this shape");
  const double operations = 2.0 * static_cast<double>(kMeasuredRows * w.n_rows) * static_cast<double>(w.n_cols);
  return DenseSpeed{operations / own, operations / librarys};
}

Result<LibraryMatrices> choose_dense(const DenseLibrary& library, const std::vector<const PackedMatrix*>& matrices,
                                     const KernelTable& kernels, OmpTeam* team, std::vector<uint32_t>* choices) {
  choices->resize(matrices.size(), 0);
  std::map<std::tuple<GgmlType, int64_t, int64_t>, bool> by_shape;  // those that must be measured
  LibraryMatrices chosen;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const PackedMatrix& w = *matrices[i];
    if (DenseLibrary::copy_bytes(w.type, w.n_rows, w.n_cols) == 0) continue;
    uint32_t& choice = (*choices)[i];
    if (!is_valid(library, choice)) {
      const auto shape = std::make_tuple(w.type, w.n_rows, w.n_cols);
      if (!by_shape.contains(shape)) {
        const auto speed = measure_dense(library, w, kernels, team);
        if (!speed.ok() && speed.status().code() != StatusCode::kUnavailable) return speed.status();
        by_shape[shape] = speed.ok() && speed->library_wins();
      }
      choice = stored(library, by_shape[shape]);
    }
    if (choice % 4 != kLibrarys) continue;
    CHECK_ASSIGN(chosen[w.data], library.make(w, kernels, float_act_stride(w.n_cols)));
  }
  return chosen;
}

}  // namespace tandem
