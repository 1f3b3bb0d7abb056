// The grid of kernels: rows are ops, columns are instruction sets; an empty cell inherits from the
// column to its left. Selected once at start and passed down as `const KernelTable&`. Pure
// functions on raw memory: no allocation, no threads, no logging; callers split the work and own
// every buffer.
//
// Shape letters (kernels/README.md): M activation rows (tokens), N output features, K input
// features. Invariance: the float operations behind one output element and their order depend on K,
// the weight type and the column of this table only, never on M, on how N was split, or on the
// calling thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/quant_traits.h"

namespace tandem {

// Output features per tile of a packed matrix: the unit in which callers split N among threads.
constexpr int kTileRows = 16;

// Of what packed_bytes and pack_tiles of all columns make. Files of packed weights carry it: add one
// whenever the packed form of any type changes in any column (a layout, a rounding, an added field);
// what reads it (matmul, packed_row) may change freely.
constexpr uint32_t kPackVersion = 3;

// A weight matrix repacked for one column of the table. `data` is 64-byte aligned, packed_bytes()
// long.
struct PackedMatrix {
  GgmlType type = GgmlType::kF32;  // type in the model file, or a packed form of it
  int64_t n_rows = 0;              // N
  int64_t n_cols = 0;              // K, a multiple of the type's block
  const uint8_t* data = nullptr;
};

// Of a nested matrix the form that reads its first plane alone: half the bytes. Others have none and stay.
static constexpr PackedMatrix lean_form(PackedMatrix w) {
  if (w.type == GgmlType::kQ8_0Nested) w.type = GgmlType::kQ8_0Lean;
  return w;
}

enum class KvType : uint8_t { kF16, kQ8_0, kF32 };  // kF32: the reference mode's

// One layer of one layer group in one pool of pages. All of a page: for each layer of the group, K
// of page_size tokens, then V. The layout inside K and V belongs to kv_append and attention alone.
struct KvLayout {
  KvType type = KvType::kF16;
  int page_size = 16;
  int n_kv_heads = 0;
  int head_dim = 0;         // of K and of V
  size_t page_bytes = 0;    // of the whole group
  size_t layer_offset = 0;  // of this layer inside a page
};

struct AttentionParams {
  KvLayout layout;
  const uint8_t* pool = nullptr;        // page p starts at pool + p * page_bytes, 64-byte aligned
  const int32_t* page_table = nullptr;  // page_table[i] holds positions [i*page_size,
                                        // (i+1)*page_size); -1 for pages that left the window
  const float* q = nullptr;  // [n_tokens][n_heads*head_dim], roped, row stride q_stride floats
  int64_t q_stride = 0;
  float* out = nullptr;  // as q
  int64_t out_stride = 0;
  int n_heads = 0;    // multiple of layout.n_kv_heads
  int first_pos = 0;  // position of query row 0
  int n_tokens = 0;
  int window = 0;        // 0: all keys 0..pos; else keys with pos - window < key <= pos
  float scale = 1.0f;    // multiplies q·k
  float softcap = 0.0f;  // 0: none; else softcap * tanh(score / softcap)
};

// Attention of a query row is computed in parts of this many aligned positions (so part i of every
// row holds the same keys), each on its own, and joined in ascending order. The split is the same
// however the work is shared out, so a long row may be computed by many threads with the same bits.
// A multiple of 64. 256: 64-wide heads then read 64 kB a part, about 4 us.
constexpr int kAttentionPartKeys = 256;
// Floats of a record: what one row's part gives (weighted values, maximum, sum), to 64 bytes.
static constexpr int64_t attention_record_floats(int head_dim) {
  return (int64_t{head_dim} + 2 + 15) / 16 * 16;
}

struct KernelTable {
  const char* isa = "";  // "ref", "avx2", "avxvnni", "avx512vnni", "avx512bf16"; on ARM "ref", "neon", "neondot", "neoni8mm"

  // --- weights -----------------------------------------------------------------------------------
  // Bytes of the packed form of a [n_rows][n_cols] matrix of `type`; 0 when the type is not served.
  size_t (*packed_bytes)(GgmlType type, int64_t n_rows, int64_t n_cols);
  // Packs tiles [tile_begin, tile_end) from the file's rows (row r at rows + r * row_bytes) into
  // dst (the start of the whole packed matrix). Missing rows of the last tile are zero. Lossless:
  // the packed form dequantizes to exactly the floats of dequantize_row.
  void (*pack_tiles)(GgmlType type, const uint8_t* rows, int64_t n_rows, int64_t n_cols,
                     int64_t tile_begin, int64_t tile_end, uint8_t* dst);
  // Row `row` of a packed matrix as floats: embedding lookup of tied weights.
  void (*packed_row)(const PackedMatrix& w, int64_t row, float* out);

  // --- matmul ------------------------------------------------------------------------------------
  // Bytes of one quantized activation row of n_cols; a multiple of 64. The same for all weight
  // types.
  size_t (*act_row_bytes)(int64_t n_cols);
  // x: [n_cols] floats -> act: 12-bit integers (1.5 planes of int8) with one scale and sum per 32
  // values (act_block.h). act: 64-byte aligned, here and in matmul. A NaN or infinity in x makes
  // every result of its block's rows NaN.
  void (*quantize_act)(const float* x, int64_t n_cols, uint8_t* act);
  // y[m][n] = sum_k act[m][k] * w[n][k] for n in tiles [tile_begin, tile_end), m in [0, M).
  // y: row stride ldy floats; only columns < n_rows are written. F32/F16/BF16 weights are served
  // too.
  void (*matmul)(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const uint8_t* act,
                 int64_t M, float* y, int64_t ldy);
  // The same with float32 activations x [M][n_cols], row stride ldx: the reference mode.
  void (*matmul_f32)(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                     int64_t ldx, int64_t M, float* y, int64_t ldy);

  // matmul_f32 for F32, F16 and BF16 weights in the default mode, which does not quantize activations
  // for them. A column with bfloat16 products may round activations to bfloat16 (relative error 2^-9
  // each) where the weights are BF16; all else is the same.
  void (*matmul_dense)(const PackedMatrix& w, int64_t tile_begin, int64_t tile_end, const float* x,
                       int64_t ldx, int64_t M, float* y, int64_t ldy);

  // --- rows of floats ----------------------------------------------------------------------------
  // out = x / sqrt(mean(x^2) + eps) * weight. x and out may alias. Sum order fixed per column.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  // In place on [n_heads][head_dim]; the first rope_dim of each head turn. cos_sin:
  // [rope_dim/2][2]. neox: pairs (i, i + rope_dim/2); else pairs (2i, 2i+1).
  void (*rope)(float* x, int n_heads, int head_dim, int rope_dim, const float* cos_sin, bool neox);
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);  // silu(gate)*up
  void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t n,
                        float* out);                     // gelu_tanh(gate)*up
  void (*add)(const float* x, int64_t n, float* inout);  // inout += x
  // max and log(sum(exp(x))) of a row; fixed order. Used for log-probabilities: logprob = x -
  // result.
  double (*log_sum_exp)(const float* x, int64_t n);

  // --- attention over pages ----------------------------------------------------------------------
  // Bytes of one layer's K and V in one page.
  size_t (*kv_layer_bytes)(const KvLayout& layout);
  // Stores k, v ([n_kv_heads*head_dim] each) of the token in slot `slot` (0..page_size-1) of
  // `page`.
  void (*kv_append)(const KvLayout& layout, uint8_t* page, int slot, const float* k,
                    const float* v);
  // Query rows [token_begin, token_end) of all heads that share `kv_head`. Scores are never
  // materialized for more than a block of keys; pages are visited in ascending order, so a query's
  // result does not depend on which rows share the call. scratch: attention_scratch_bytes().
  void (*attention)(const AttentionParams& p, int kv_head, int token_begin, int token_end,
                    uint8_t* scratch);
  size_t (*attention_scratch_bytes)(const AttentionParams& p, int n_tokens);
  // The same in two steps, for rows so long that several threads share them. attention_parts: the
  // records of query rows [token_begin, token_end) for the keys of parts [part_begin, part_end), each
  // of which holds some key that one of the rows sees: a part's lie `stride` floats after the last
  // part's, [token][head of kv_head] attention_record_floats apart; p.out is not used. A row that
  // sees nothing of a part has a record that changes nothing. attention_join: one head's result
  // [head_dim] from its parts in ascending order, `stride` floats apart.
  void (*attention_parts)(const AttentionParams& p, int kv_head, int token_begin, int token_end,
                          int part_begin, int part_end, float* records, int64_t stride,
                          uint8_t* scratch);
  void (*attention_join)(const KvLayout& layout, const float* records, int n_parts, int64_t stride,
                         float* out, uint8_t* scratch);

  // --- what this machine can do (bench, doctor); the caller runs one per thread and takes the time
  // ---- `iterations` rounds of independent int8 dot products in registers. Returns the operations
  // done (a multiply-add counts two) and stores a value that depends on all of them.
  int64_t (*peak_int8)(int64_t iterations, int32_t* sink);
  // Reads `bytes` (a multiple of 64, 64-byte aligned) once; returns a value that depends on all of
  // them.
  uint64_t (*peak_read)(const uint8_t* data, size_t bytes);
};

// All columns compiled into this program, worst first; `needs` names CPU features as cpu/cpu_info
// spells them (space separated, empty for ref).
struct KernelColumn {
  const KernelTable* table;
  const char* needs;
};
const KernelColumn* kernel_columns(int* n_columns);
const KernelTable& kernel_table_ref();

}  // namespace tandem
