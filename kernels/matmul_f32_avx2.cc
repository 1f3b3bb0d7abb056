// Matmul of exact weights with AVX2: the reference mode (float activations, every type), and F16,
// BF16 and F32 weights with quantized activations. One output element is one chain of fma over
// ascending k.
#include "kernels/columns.h"
#include "kernels/forms_avx2.h"

namespace tandem::avx2 {
namespace {

constexpr int64_t kRowsInCache = 32;

// Weights of a block of 32 k, 8 rows each.
struct alignas(64) FloatBlock {
  float w[QK][8];
};

template <GgmlType kType>
TANDEM_INLINE void load_floats(const TilePlanes& tile, int64_t b, int half, FloatBlock* out) {
  constexpr TileShape kShape = *tile_shape(kType);
  if constexpr (is_plain(kShape)) {
    const uint8_t* p = tile.first + (b * QK * kTileRows + 8 * half) * (kShape.bits / 8);
    for (int k = 0; k < QK; ++k, p += kTileRows * kShape.bits / 8) {
      __m256 v;
      if constexpr (kType == GgmlType::kF32) v = _mm256_load_ps(reinterpret_cast<const float*>(p));
      if constexpr (kType == GgmlType::kF16) v = load_half8(p);
      if constexpr (kType == GgmlType::kBF16) {
        const __m128i h = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
        v = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
      }
      _mm256_store_ps(out->w[k], v);
    }
  } else {
    Block256 w;
    Form256<kType>::load(tile, b, half, &w);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        _mm256_store_ps(out->w[4 * j + t], Form256<kType>::weight(w, j, t));
      }
    }
  }
}

// Float activations of kRows rows.
template <GgmlType kType, int kRows>
void multiply_f32(const TilePlanes& tile, int64_t n_blocks, int half, const float* x, int64_t ldx,
                  float* y, int64_t ldy, int columns) {
  __m256 acc[kRows];
  for (int m = 0; m < kRows; ++m) acc[m] = _mm256_setzero_ps();
  FloatBlock block;
  for (int64_t b = 0; b < n_blocks; ++b) {
    load_floats<kType>(tile, b, half, &block);
    for (int k = 0; k < QK; ++k) {
      const __m256 w = _mm256_load_ps(block.w[k]);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        acc[m] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[m * ldx + b * QK + k]), acc[m]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) store_columns(y + m * ldy, columns, acc[m]);
}

TANDEM_INLINE __m256i load_int8(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// Quantized activations: as floats, then the same chain of fma.
template <GgmlType kType, int kRows>
void multiply_act(const TilePlanes& tile, int64_t n_blocks, int half, const uint8_t* act,
                  size_t act_stride, float* y, int64_t ldy, int columns) {
  __m256 acc[kRows];
  for (int m = 0; m < kRows; ++m) acc[m] = _mm256_setzero_ps();
  FloatBlock block;
  alignas(64) float x[kRows][QK];
  for (int64_t b = 0; b < n_blocks; ++b) {
    load_floats<kType>(tile, b, half, &block);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const auto& a =
          reinterpret_cast<const ActBlock*>(act + static_cast<size_t>(m) * act_stride)[b];
      for (int h = 0; h < 4; ++h) {
        const __m256i coarse = _mm256_slli_epi32(load_int8(a.coarse + 8 * h), 8);
        const __m256i whole = _mm256_add_epi32(coarse, _mm256_slli_epi32(load_int8(a.fine + 8 * (h % 2)), h < 2 ? 0 : 4));
        _mm256_store_ps(x[m] + 8 * h,
                        _mm256_mul_ps(_mm256_set1_ps(a.d), _mm256_cvtepi32_ps(whole)));
      }
    }
    for (int k = 0; k < QK; ++k) {
      const __m256 w = _mm256_load_ps(block.w[k]);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) acc[m] = _mm256_fmadd_ps(w, _mm256_set1_ps(x[m][k]), acc[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) store_columns(y + m * ldy, columns, acc[m]);
}

// Calls rows8(m), then rows4, rows2, rows1 for the rest of [begin, end).
template <typename F8, typename F4, typename F2, typename F1>
TANDEM_INLINE void split_rows(int64_t begin, int64_t end, F8 rows8, F4 rows4, F2 rows2, F1 rows1) {
  int64_t m = begin;
  for (; end - m >= 8; m += 8) rows8(m);
  if (end - m >= 4) rows4(m), m += 4;
  if (end - m >= 2) rows2(m), m += 2;
  if (end - m >= 1) rows1(m);
}

template <GgmlType kType>
void matmul_f32_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                     int64_t ldx, int64_t M, float* y, int64_t ldy) {
  for (int64_t m0 = 0; m0 < M; m0 += kRowsInCache) {
    const int64_t m_end = M < m0 + kRowsInCache ? M : m0 + kRowsInCache;
    for (int64_t part = 2 * tile_begin; part < 2 * tile_end; ++part) {
      const int64_t t = part / 2;
      const int half = static_cast<int>(part % 2), columns = columns_of(w.n_rows, t, half);
      const TilePlanes tile = tile_planes(*tile_shape(kType), w, t);
      const auto call = [&](auto multiply) {
        return [=](int64_t m) {
          multiply(tile, w.n_cols / QK, half, x + m * ldx, ldx, y + part * 8 + m * ldy, ldy,
                   columns);
        };
      };
      split_rows(m0, m_end, call(multiply_f32<kType, 8>), call(multiply_f32<kType, 4>),
                 call(multiply_f32<kType, 2>), call(multiply_f32<kType, 1>));
    }
  }
}

template <GgmlType kType>
void matmul_act_form(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end,
                     const uint8_t* act, int64_t M, float* y, int64_t ldy) {
  const size_t stride = act_row_bytes_of(w.n_cols);
  for (int64_t m0 = 0; m0 < M; m0 += kRowsInCache) {
    const int64_t m_end = M < m0 + kRowsInCache ? M : m0 + kRowsInCache;
    for (int64_t part = 2 * tile_begin; part < 2 * tile_end; ++part) {
      const int64_t t = part / 2;
      const int half = static_cast<int>(part % 2), columns = columns_of(w.n_rows, t, half);
      const TilePlanes tile = tile_planes(*tile_shape(kType), w, t);
      const auto call = [&](auto multiply) {
        return [=](int64_t m) {
          multiply(tile, w.n_cols / QK, half, act + static_cast<size_t>(m) * stride, stride,
                   y + part * 8 + m * ldy, ldy, columns);
        };
      };
      split_rows(m0, m_end, call(multiply_act<kType, 8>), call(multiply_act<kType, 4>),
                 call(multiply_act<kType, 2>), call(multiply_act<kType, 1>));
    }
  }
}

}  // namespace

void matmul_plain(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
                  int64_t M, float* y, int64_t ldy) {
  if (w.type == GgmlType::kF16) {
    matmul_act_form<GgmlType::kF16>(w, tile_begin, tile_end, act, M, y, ldy);
  } else if (w.type == GgmlType::kBF16) {
    matmul_act_form<GgmlType::kBF16>(w, tile_begin, tile_end, act, M, y, ldy);
  } else {
    matmul_act_form<GgmlType::kF32>(w, tile_begin, tile_end, act, M, y, ldy);
  }
}

void matmul_f32(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                int64_t ldx, int64_t M, float* y, int64_t ldy) {
  switch (w.type) {
#define TANDEM_CASE(type) \
  case GgmlType::type:    \
    return matmul_f32_form<GgmlType::type>(w, tile_begin, tile_end, x, ldx, M, y, ldy);
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      return matmul_dense(w, tile_begin, tile_end, x, ldx, M, y, ldy);
    TANDEM_TILED_TYPES(TANDEM_CASE)
#undef TANDEM_CASE
    default:
      return;  // packed_bytes refused every other type
  }
}

}  // namespace tandem::avx2
