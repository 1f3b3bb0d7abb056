// Step widths by search: the scale (and minimum) of one block with the least weighted squared error. What the k-quants always
// do, and the simple types where columns have weights. x, weight: one block, weight >= 0. Thread-safe.
#pragma once

#include <cmath>
#include <span>

namespace tandem {

// The level next to v, in [low, high]. Where a step is below 1e-38 v may be infinite, or no number, which gives low.
inline int nearest_level(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  return v < static_cast<float>(high) ? static_cast<int>(std::lrintf(v)) : high;
}

// value = scale * level + min, 0 <= scale.
struct Affine {
  float scale = 0, min = 0;
};

struct AffineSearch {
  int n_levels;              // 0 .. n_levels - 1
  int n_tries;
  float first;               // added to the highest level in the first try; each next try adds 0.1
  // Least squares about the means: where few columns count, plain sums leave nothing but their rounding. Files without column
  // weights are made with plain ones, as they always were.
  bool is_centered = false;
  bool is_min_free = false;  // only where centered; else min <= 0, as the k-quants store it
};
// Of QK values: the plain step, judged as it is, and each try with the best scale and minimum for its levels.
Affine search_affine(const float* x, const float* weight, const AffineSearch& search);
// By turns from there: the nearest levels, the best scale and minimum for them. The error never rises. search: centered.
Affine refine_affine(const float* x, const float* weight, const AffineSearch& search, Affine a);

struct LevelRange {
  int low, high;  // value = scale * level
};
// Of n values. widths: how many levels the value of largest magnitude spans in each try, below zero (down to
// LevelRange::low) where positive; each with the best scale for its levels. The first wins a tie. 0: nothing to scale.
float search_scale(const float* x, const float* weight, int n, const LevelRange& range, std::span<const float> widths);
// As refine_affine.
float refine_scale(const float* x, const float* weight, int n, const LevelRange& range, float scale);

}  // namespace tandem
