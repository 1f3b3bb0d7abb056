// Small tensors (norms, biases, rope factors) as floats.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_reader.h"

namespace tandem {

// Tensor `name` of shape [n], converted. Errors: missing, another shape, a type without
// dequantizer, a value that is not finite.
Result<std::vector<float>> read_float_tensor(const GgufModel& file, const std::string& name,
                                             int64_t n);

// "[576, 192]", for messages; trailing ones left out.
std::string shape_text(const GgufTensor& tensor);

}  // namespace tandem
