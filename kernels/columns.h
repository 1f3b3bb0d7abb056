// The ops of each column, by namespace. Fast columns declare only what they implement;
// kernel_table.cc fills their empty cells from the column to the left. Signatures are documented in
// kernel_table.h.
#pragma once

#include "kernels/kernel_table.h"

namespace tandem {

namespace ref {
size_t packed_bytes(GgmlType type, int64_t n_rows, int64_t n_cols);
void pack_tiles(GgmlType type, const uint8_t* rows, int64_t n_rows, int64_t n_cols,
                int64_t tile_begin, int64_t tile_end, uint8_t* dst);
void packed_row(const PackedMatrix& w, int64_t row, float* out);
size_t act_row_bytes(int64_t n_cols);
void quantize_act(const float* x, int64_t n_cols, uint8_t* act);
void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
            int64_t M, float* y, int64_t ldy);
void matmul_f32(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                int64_t ldx, int64_t M, float* y, int64_t ldy);
void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out);
void rope(float* x, int n_heads, int head_dim, int rope_dim, const float* cos_sin, bool neox);
void silu_mul(const float* gate, const float* up, int64_t n, float* out);
void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out);
void add(const float* x, int64_t n, float* inout);
double log_sum_exp(const float* x, int64_t n);
size_t kv_layer_bytes(const KvLayout& layout);
void kv_append(const KvLayout& layout, uint8_t* page, int slot, const float* k, const float* v);
void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end,
               uint8_t* scratch);
size_t attention_scratch_bytes(const AttentionParams& p, int n_tokens);
void attention_parts(const AttentionParams& p, int kv_head, int token_begin, int token_end,
                     int part_begin, int part_end, float* records, int64_t stride,
                     uint8_t* scratch);
void attention_join(const KvLayout& layout, const float* records, int n_parts, int64_t stride,
                    float* out, uint8_t* scratch);
int64_t peak_int8(int64_t iterations, int32_t* sink);
uint64_t peak_read(const uint8_t* data, size_t bytes);
}  // namespace ref

// Every vector column has the same ops. For F32, F16 and BF16 weights matmul_plain is the part of matmul,
// matmul_dense that of matmul_f32.
#define TANDEM_VECTOR_COLUMN(column)                                                                 \
  namespace column {                                                                                 \
  void quantize_act(const float* x, int64_t n_cols, uint8_t* act);                                   \
  void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,       \
              int64_t M, float* y, int64_t ldy);                                                     \
  void matmul_plain(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act, \
                    int64_t M, float* y, int64_t ldy);                                               \
  void matmul_f32(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,       \
                  int64_t ldx, int64_t M, float* y, int64_t ldy);                                    \
  void matmul_dense(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,     \
                    int64_t ldx, int64_t M, float* y, int64_t ldy);                                  \
  void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out);              \
  void rope(float* x, int n_heads, int head_dim, int rope_dim, const float* cos_sin, bool neox);     \
  void silu_mul(const float* gate, const float* up, int64_t n, float* out);                          \
  void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out);                     \
  void add(const float* x, int64_t n, float* inout);                                                 \
  double log_sum_exp(const float* x, int64_t n);                                                     \
  void kv_append(const KvLayout& layout, uint8_t* page, int slot, const float* k, const float* v);   \
  void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end,              \
                 uint8_t* scratch);                                                                  \
  size_t attention_scratch_bytes(const AttentionParams& p, int n_tokens);                            \
  void attention_parts(const AttentionParams& p, int kv_head, int token_begin, int token_end,        \
                       int part_begin, int part_end, float* records, int64_t stride,                 \
                       uint8_t* scratch);                                                            \
  void attention_join(const KvLayout& layout, const float* records, int n_parts, int64_t stride,     \
                      float* out, uint8_t* scratch);                                                 \
  int64_t peak_int8(int64_t iterations, int32_t* sink);                                              \
  uint64_t peak_read(const uint8_t* data, size_t bytes);                                             \
  }
// What is not here is avx512vnni's.
namespace avx512bf16 {
void matmul_dense(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                  int64_t ldx, int64_t M, float* y, int64_t ldy);
}  // namespace avx512bf16

TANDEM_VECTOR_COLUMN(avx2)
TANDEM_VECTOR_COLUMN(avx512vnni)
TANDEM_VECTOR_COLUMN(neon)
#undef TANDEM_VECTOR_COLUMN

// Columns that differ from their left neighbour in integer dot products alone.
#define TANDEM_DOT_COLUMN(column)                                                                 \
  namespace column {                                                                              \
  void matmul(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,    \
              int64_t M, float* y, int64_t ldy);                                                  \
  int64_t peak_int8(int64_t iterations, int32_t* sink);                                           \
  }
TANDEM_DOT_COLUMN(avxvnni)
TANDEM_DOT_COLUMN(neondot)
TANDEM_DOT_COLUMN(neoni8mm)
#undef TANDEM_DOT_COLUMN

}  // namespace tandem
