// The grid: rows are ops, columns are instruction sets, worst first.
#include "kernels/kernel_table.h"

#include "kernels/columns.h"
#include "kernels/tile_layout.h"

namespace tandem {
namespace {

constexpr KernelTable kRef = {
    .isa = "ref",
    .packed_bytes = ref::packed_bytes,
    .pack_tiles = ref::pack_tiles,
    .packed_row = ref::packed_row,
    .act_row_bytes = ref::act_row_bytes,
    .quantize_act = ref::quantize_act,
    .matmul = ref::matmul,
    .matmul_f32 = ref::matmul_f32,
    .matmul_dense = ref::matmul_f32,
    .rms_norm = ref::rms_norm,
    .rope = ref::rope,
    .silu_mul = ref::silu_mul,
    .gelu_tanh_mul = ref::gelu_tanh_mul,
    .add = ref::add,
    .log_sum_exp = ref::log_sum_exp,
    .kv_layer_bytes = ref::kv_layer_bytes,
    .kv_append = ref::kv_append,
    .attention = ref::attention,
    .attention_scratch_bytes = ref::attention_scratch_bytes,
    .attention_parts = ref::attention_parts,
    .attention_join = ref::attention_join,
    .peak_int8 = ref::peak_int8,
    .peak_read = ref::peak_read,
};

// A column that differs from its left neighbour in integer dot products alone.
[[maybe_unused]] constexpr KernelTable with_dots(KernelTable t, const char* isa,
                                                 decltype(KernelTable::matmul) matmul,
                                                 decltype(KernelTable::peak_int8) peak_int8) {
  t.isa = isa;
  t.matmul = matmul;
  t.peak_int8 = peak_int8;
  return t;
}

#if defined(__x86_64__)
constexpr KernelTable kAvx2 = {
    .isa = "avx2",
    .packed_bytes = tiled::packed_bytes,
    .pack_tiles = tiled::pack_tiles,
    .packed_row = tiled::packed_row,
    .act_row_bytes = ref::act_row_bytes,
    .quantize_act = avx2::quantize_act,
    .matmul = avx2::matmul,
    .matmul_f32 = avx2::matmul_f32,
    .matmul_dense = avx2::matmul_dense,
    .rms_norm = avx2::rms_norm,
    .rope = avx2::rope,
    .silu_mul = avx2::silu_mul,
    .gelu_tanh_mul = avx2::gelu_tanh_mul,
    .add = avx2::add,
    .log_sum_exp = avx2::log_sum_exp,
    .kv_layer_bytes = ref::kv_layer_bytes,
    .kv_append = avx2::kv_append,
    .attention = avx2::attention,
    .attention_scratch_bytes = avx2::attention_scratch_bytes,
    .attention_parts = avx2::attention_parts,
    .attention_join = avx2::attention_join,
    .peak_int8 = avx2::peak_int8,
    .peak_read = avx2::peak_read,
};

constexpr KernelTable kAvxVnni =
    with_dots(kAvx2, "avxvnni", avxvnni::matmul, avxvnni::peak_int8);

constexpr KernelTable kAvx512Vnni = {
    .isa = "avx512vnni",
    .packed_bytes = tiled::packed_bytes,
    .pack_tiles = tiled::pack_tiles,
    .packed_row = tiled::packed_row,
    .act_row_bytes = ref::act_row_bytes,
    .quantize_act = avx512vnni::quantize_act,
    .matmul = avx512vnni::matmul,
    .matmul_f32 = avx512vnni::matmul_f32,
    .matmul_dense = avx512vnni::matmul_dense,
    .rms_norm = avx512vnni::rms_norm,
    .rope = avx512vnni::rope,
    .silu_mul = avx512vnni::silu_mul,
    .gelu_tanh_mul = avx512vnni::gelu_tanh_mul,
    .add = avx512vnni::add,
    .log_sum_exp = avx512vnni::log_sum_exp,
    .kv_layer_bytes = ref::kv_layer_bytes,
    .kv_append = avx512vnni::kv_append,
    .attention = avx512vnni::attention,
    .attention_scratch_bytes = avx512vnni::attention_scratch_bytes,
    .attention_parts = avx512vnni::attention_parts,
    .attention_join = avx512vnni::attention_join,
    .peak_int8 = avx512vnni::peak_int8,
    .peak_read = avx512vnni::peak_read,
};

constexpr KernelTable with_bf16(KernelTable table) {
  table.isa = "avx512bf16";
  table.matmul_dense = avx512bf16::matmul_dense;
  return table;
}
constexpr KernelTable kAvx512Bf16 = with_bf16(kAvx512Vnni);
#endif

#if defined(__aarch64__)
constexpr KernelTable kNeon = {
    .isa = "neon",
    .packed_bytes = tiled::packed_bytes,
    .pack_tiles = tiled::pack_tiles,
    .packed_row = tiled::packed_row,
    .act_row_bytes = ref::act_row_bytes,
    .quantize_act = neon::quantize_act,
    .matmul = neon::matmul,
    .matmul_f32 = neon::matmul_f32,
    .matmul_dense = neon::matmul_dense,
    .rms_norm = neon::rms_norm,
    .rope = neon::rope,
    .silu_mul = neon::silu_mul,
    .gelu_tanh_mul = neon::gelu_tanh_mul,
    .add = neon::add,
    .log_sum_exp = neon::log_sum_exp,
    .kv_layer_bytes = ref::kv_layer_bytes,
    .kv_append = neon::kv_append,
    .attention = neon::attention,
    .attention_scratch_bytes = neon::attention_scratch_bytes,
    .attention_parts = neon::attention_parts,
    .attention_join = neon::attention_join,
    .peak_int8 = neon::peak_int8,
    .peak_read = neon::peak_read,
};

constexpr KernelTable kNeonDot = with_dots(kNeon, "neondot", neondot::matmul, neondot::peak_int8);
constexpr KernelTable kNeonI8mm = with_dots(kNeon, "neoni8mm", neoni8mm::matmul, neoni8mm::peak_int8);
#endif

constexpr KernelColumn kColumns[] = {
    {&kRef, ""},
#if defined(__x86_64__)
    {&kAvx2, "avx2 fma f16c"},
    {&kAvxVnni, "avx_vnni avx2 fma f16c"},
    {&kAvx512Vnni, "avx512f avx512bw avx512dq avx512vl avx512_vnni fma f16c avx2"},
    {&kAvx512Bf16, "avx512_bf16 avx512f avx512bw avx512dq avx512vl avx512_vnni fma f16c avx2"},
#endif
#if defined(__aarch64__)
    {&kNeon, "asimd"},
    {&kNeonDot, "asimd asimddp"},
    {&kNeonI8mm, "asimd asimddp i8mm"},
#endif
};

}  // namespace

const KernelColumn* kernel_columns(int* n_columns) {
  *n_columns = sizeof(kColumns) / sizeof(kColumns[0]);
  return kColumns;
}

const KernelTable& kernel_table_ref() { return kRef; }

}  // namespace tandem
