#include "model/weight_check.h"

#include <fmt/format.h>

#include <cstring>

namespace tandem {
namespace {

// Where a block keeps half-precision numbers: at `first`, and at `second` if that is not -1 (ggml
// layouts).
struct ScaleFields {
  GgmlType type;
  int first, second;
};
constexpr ScaleFields kScaleFields[] = {
    {GgmlType::kF16, 0, -1},    {GgmlType::kQ4_0, 0, -1},   {GgmlType::kQ4_1, 0, 2},
    {GgmlType::kQ5_0, 0, -1},   {GgmlType::kQ5_1, 0, 2},    {GgmlType::kQ8_0, 0, -1},
    {GgmlType::kQ2_K, 80, 82},  {GgmlType::kQ3_K, 108, -1}, {GgmlType::kQ4_K, 0, 2},
    {GgmlType::kQ5_K, 0, 2},    {GgmlType::kQ6_K, 208, -1}, {GgmlType::kIQ4_NL, 0, -1},
    {GgmlType::kIQ4_XS, 0, -1},
};

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
bool half_is_finite(const uint8_t* p) { return (load_u16(p) & 0x7c00) != 0x7c00; }
bool bf16_is_finite(const uint8_t* p) { return (load_u16(p) & 0x7f80) != 0x7f80; }
bool float_is_finite(const uint8_t* p) { return (load_u16(p + 2) & 0x7f80) != 0x7f80; }
bool e8m0_is_finite(const uint8_t* p) { return *p != 0xff; }

// First block whose check fails, or n.
template <typename IsFinite>
int64_t first_bad(const uint8_t* p, int64_t n, int64_t stride, IsFinite is_finite) {
  for (int64_t i = 0; i < n; ++i)
    if (!is_finite(p + i * stride)) return i;
  return n;
}

int64_t first_bad_block(GgmlType type, const uint8_t* p, int64_t n, int64_t stride) {
  if (type == GgmlType::kF32 || type == GgmlType::kQ8_K) return first_bad(p, n, stride, float_is_finite);
  if (type == GgmlType::kBF16) return first_bad(p, n, stride, bf16_is_finite);
  if (type == GgmlType::kMXFP4) return first_bad(p, n, stride, e8m0_is_finite);
  for (const ScaleFields& f : kScaleFields) {
    if (f.type != type) continue;
    int64_t bad = first_bad(p + f.first, n, stride, half_is_finite);
    return f.second < 0 ? bad : first_bad(p + f.second, bad, stride, half_is_finite);
  }
  return n;
}

}  // namespace

Status check_finite_rows(const WeightView& w, int64_t row_begin, int64_t row_end) {
  const QuantTraits* traits = quant_traits(static_cast<uint32_t>(w.type));
  int64_t row_blocks = w.n_cols / traits->block_size;
  int64_t n = (row_end - row_begin) * row_blocks;
  const uint8_t* begin = w.data + row_begin * row_blocks * traits->block_bytes;
  int64_t bad = first_bad_block(w.type, begin, n, traits->block_bytes);
  if (bad == n) return ok_status();
  return data_loss(
      fmt::format("row {}, block {} of type {}: a scale or value is not finite; the file is"
                  " damaged, fetch it again",
                  row_begin + bad / row_blocks, bad % row_blocks, traits->name));
}

}  // namespace tandem
