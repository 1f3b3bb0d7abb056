// The grid: rows are ops, columns are instruction sets, worst first.
#include "kernels/kernel_table.h"

#include "kernels/columns.h"

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
};

constexpr KernelColumn kColumns[] = {{&kRef, ""}};

}  // namespace

const KernelColumn* kernel_columns(int* n_columns) {
  *n_columns = sizeof(kColumns) / sizeof(kColumns[0]);
  return kColumns;
}

const KernelTable& kernel_table_ref() { return kRef; }

}  // namespace tandem
