// Matmul of exact weights with AVX-512: the reference mode (float activations, every type), and
// F16, BF16 and F32 weights with quantized activations. One output element is one chain of fma over
// ascending k.
#include "kernels/columns.h"
#include "kernels/forms_avx512vnni.h"

namespace tandem::avx512vnni {
namespace {

constexpr int64_t kRowsInCache = 64;

// Weights of a block of 32 k, 16 rows each.
struct alignas(64) FloatBlock {
  float w[QK][kTileRows];
};

template <GgmlType kType>
TANDEM_INLINE void load_floats(const TilePlanes& tile, int64_t b, FloatBlock* out) {
  constexpr TileShape kShape = *tile_shape(kType);
  if constexpr (is_plain(kShape)) {
    const uint8_t* p = tile.first + b * (QK * kTileRows * kShape.bits / 8);
    for (int k = 0; k < QK; ++k, p += kTileRows * kShape.bits / 8) {
      __m512 v;
      if constexpr (kType == GgmlType::kF32) v = _mm512_load_ps(reinterpret_cast<const float*>(p));
      if constexpr (kType == GgmlType::kF16) v = load_half16(p);
      if constexpr (kType == GgmlType::kBF16) {
        const __m256i h = _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
        v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
      }
      _mm512_store_ps(out->w[k], v);
    }
  } else {
    Block512 w;
    Form512<kType>::load(tile, b, &w);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        _mm512_store_ps(out->w[4 * j + t], Form512<kType>::weight(w, j, t));
      }
    }
  }
}

// Float activations of kRows rows.
template <GgmlType kType, int kRows>
void multiply_f32(const TilePlanes& tile, int64_t n_blocks, const float* x, int64_t ldx, float* y,
                  int64_t ldy, __mmask16 columns) {
  __m512 acc[kRows];
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  FloatBlock block;
  for (int64_t b = 0; b < n_blocks; ++b) {
    load_floats<kType>(tile, b, &block);
    for (int k = 0; k < QK; ++k) {
      const __m512 w = _mm512_load_ps(block.w[k]);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        acc[m] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[m * ldx + b * QK + k]), acc[m]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) _mm512_mask_storeu_ps(y + m * ldy, columns, acc[m]);
}

TANDEM_INLINE __m512i load_int8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

// Quantized activations: as floats, then the same chain of fma.
template <GgmlType kType, int kRows>
void multiply_act(const TilePlanes& tile, int64_t n_blocks, const uint8_t* act, size_t act_stride,
                  float* y, int64_t ldy, __mmask16 columns) {
  __m512 acc[kRows];
  for (int m = 0; m < kRows; ++m) acc[m] = _mm512_setzero_ps();
  FloatBlock block;
  alignas(64) float x[kRows][QK];
  for (int64_t b = 0; b < n_blocks; ++b) {
    load_floats<kType>(tile, b, &block);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const auto& a =
          reinterpret_cast<const ActBlock*>(act + static_cast<size_t>(m) * act_stride)[b];
      for (int h = 0; h < 2; ++h) {
        const __m512i coarse = _mm512_slli_epi32(load_int8(a.coarse + 16 * h), 8);
        const __m512i whole = _mm512_add_epi32(coarse, _mm512_slli_epi32(load_int8(a.fine), h ? 4 : 0));
        _mm512_store_ps(x[m] + 16 * h,
                        _mm512_mul_ps(_mm512_set1_ps(a.d), _mm512_cvtepi32_ps(whole)));
      }
    }
    for (int k = 0; k < QK; ++k) {
      const __m512 w = _mm512_load_ps(block.w[k]);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) acc[m] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[m][k]), acc[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) _mm512_mask_storeu_ps(y + m * ldy, columns, acc[m]);
}

__mmask16 valid_columns(int64_t n_rows, int64_t tile) {
  const int64_t left = n_rows - tile * kTileRows;
  return static_cast<__mmask16>(left >= 16 ? 0xffffu : (1u << left) - 1);
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
  const int64_t n_blocks = w.n_cols / QK;
  for (int64_t m0 = 0; m0 < M; m0 += kRowsInCache) {
    const int64_t m_end = M < m0 + kRowsInCache ? M : m0 + kRowsInCache;
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      const TilePlanes tile = tile_planes(*tile_shape(kType), w, t);
      float* out = y + t * kTileRows;
      const __mmask16 columns = valid_columns(w.n_rows, t);
      const auto call = [&](auto multiply) {
        return [=](int64_t m) {
          multiply(tile, n_blocks, x + m * ldx, ldx, out + m * ldy, ldy, columns);
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
  const int64_t n_blocks = w.n_cols / QK;
  for (int64_t m0 = 0; m0 < M; m0 += kRowsInCache) {
    const int64_t m_end = M < m0 + kRowsInCache ? M : m0 + kRowsInCache;
    for (int64_t t = tile_begin; t < tile_end; ++t) {
      const TilePlanes tile = tile_planes(*tile_shape(kType), w, t);
      float* out = y + t * kTileRows;
      const __mmask16 columns = valid_columns(w.n_rows, t);
      const auto call = [&](auto multiply) {
        return [=](int64_t m) {
          multiply(tile, n_blocks, act + static_cast<size_t>(m) * stride, stride, out + m * ldy,
                   ldy, columns);
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

}  // namespace tandem::avx512vnni
