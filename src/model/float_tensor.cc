#include "model/float_tensor.h"

#include <fmt/format.h>

#include <cmath>

namespace tandem {

std::string shape_text(const GgufTensor& t) {
  std::string text = "[";
  for (int d = 0; d < t.n_dims; ++d) text += (d ? ", " : "") + std::to_string(t.dims[d]);
  return text + "]";
}

Result<std::vector<float>> read_float_tensor(const GgufModel& file, const std::string& name,
                                             int64_t n) {
  auto prefix = [&] { return fmt::format("{}: tensor \"{}\"", file.name(), name); };
  const GgufTensor* t = file.find_tensor(name);
  if (t == nullptr) return invalid_argument(prefix() + " is missing; the architecture needs it");
  if (t->dims[0] != n || t->dims[1] * t->dims[2] * t->dims[3] != 1)
    return invalid_argument(
        fmt::format("{}: shape must be [{}], found {}", prefix(), n, shape_text(*t)));
  const QuantTraits* traits = quant_traits(static_cast<uint32_t>(t->type));
  if (traits == nullptr || traits->dequantize_row == nullptr)
    return invalid_argument(
        fmt::format("{}: type {} does not hold real numbers; allowed: F32, F16, BF16 or a"
                    " quantized type",
                    prefix(), traits ? traits->name : "?"));
  std::vector<float> values(static_cast<size_t>(n));
  traits->dequantize_row(t->data, n, values.data());
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      return data_loss(fmt::format("{}: value {} must be finite, found {}; fetch the file again",
                                   prefix(), i, values[i]));
  return values;
}

}  // namespace tandem
