// Where the elements of one layer lie inside a page: shared by all columns, known to kv_append and
// attention alone. P = page_size, D = head_dim.
//   kF16:  K of each head: half [D][P] (16 slots are one vector), then V of each head: half [P][D].
//   kF32:  the same, of float.
//   kQ8_0: K of each head: int8 [D][P], half scale [ceil(D/32)][P]; V: int8 [P][D], scales as K's.
#pragma once

#include "kernels/kernel_table.h"

namespace tandem {

// Bytes of K (or V) of one head in a page.
static inline size_t kv_head_bytes(const KvLayout& l) {
  const size_t values = static_cast<size_t>(l.head_dim) * static_cast<size_t>(l.page_size);
  if (l.type == KvType::kF16) return 2 * values;
  if (l.type == KvType::kF32) return 4 * values;
  const size_t scales =
      static_cast<size_t>((l.head_dim + 31) / 32) * static_cast<size_t>(l.page_size);
  return values + 2 * scales;
}

static inline size_t kv_k_offset(const KvLayout& l, int kv_head) {
  return l.layer_offset + static_cast<size_t>(kv_head) * kv_head_bytes(l);
}

static inline size_t kv_v_offset(const KvLayout& l, int kv_head) {
  return l.layer_offset + static_cast<size_t>(l.n_kv_heads + kv_head) * kv_head_bytes(l);
}

// First key a query at `pos` sees.
static inline int first_visible_key(int pos, int window) {
  return window > 0 && pos >= window ? pos - window + 1 : 0;
}

}  // namespace tandem
