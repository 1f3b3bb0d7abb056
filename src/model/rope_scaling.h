// Rotary position: base and scaling keys, and factor tensors, folded into one frequency a pair.
#pragma once

#include "base/status.h"
#include "model/config_reader.h"
#include "model/model_config.h"

namespace tandem {

// Frequencies theta^(-2i/dim) without any scaling.
RopeParams plain_rope(int dim, double theta, RopeStyle style);

// From `rope.*` keys and the tensors rope_freqs, rope_factors_long, rope_factors_short:
//   linear    every frequency divided by the factor
//   llama3    low frequencies divided, a smooth ramp between (Llama 3.1); as keys or as the tensor
//   rope_freqs yarn      interpolation by wavelength, cos and sin scaled (Peng et al. 2023)
//   longrope  one divisor a pair, the long set if the context in force exceeds the original one
//   (Ding et al.
//             2024); the choice is fixed at load, so that a sequence never changes its frequencies
//             midway
Result<RopeParams> read_rope(const ConfigReader& keys, int head_dim, int context_tokens,
                             RopeStyle style);

}  // namespace tandem
