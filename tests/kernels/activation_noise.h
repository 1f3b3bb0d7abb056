// How far an output may lie from the truth because activations are quantized: measured by quantizing them otherwise.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kernel_table.h"

namespace tandem {

// A copy of `base` whose quantize_act first adds to each value a number drawn uniformly from within half a step of its
// block (act_block.h), by seed and place. The error of a value then has the mean 0 and, averaged over values, twice the
// variance of plain rounding, and is independent from seed to seed: with enough seeds, half of the variance of an output
// is that of rounding's effect on it. One such table at a time: its function reads state of this file.
KernelTable with_activation_noise(const KernelTable& base, uint32_t seed);

// The effect's standard deviation, from one output's (or several like outputs') values by seed: [seed][output].
double rounding_sigma(const std::vector<std::vector<double>>& by_seed);

// What the largest of independent errors, normal with these standard deviations, exceeds with probability `chance`.
double largest_error(std::span<const double> sigmas, double chance);

}  // namespace tandem
