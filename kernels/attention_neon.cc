// attention_body.h for this column.
// clang-format off
#include "kernels/simd_neon.h"  // first: the body is written in its words
#include "kernels/attention_body.h"
// clang-format on

namespace tandem::neon {

void kv_append(const KvLayout& layout, uint8_t* page, int slot, const float* k, const float* v) {
  paged::kv_append(layout, page, slot, k, v);
}

void attention(const AttentionParams& p, int kv_head, int token_begin, int token_end,
               uint8_t* scratch) {
  paged::attention(p, kv_head, token_begin, token_end, scratch);
}

size_t attention_scratch_bytes(const AttentionParams& p, int n_tokens) {
  return paged::attention_scratch_bytes(p, n_tokens);
}

void attention_parts(const AttentionParams& p, int kv_head, int token_begin, int token_end,
                     int part_begin, int part_end, float* records, int64_t stride,
                     uint8_t* scratch) {
  paged::attention_parts(p, kv_head, token_begin, token_end, part_begin, part_end, records, stride,
                         scratch);
}

void attention_join(const KvLayout& layout, const float* records, int n_parts, int64_t stride,
                    float* out, uint8_t* scratch) {
  paged::attention_join(layout, records, n_parts, stride, out, scratch);
}

}  // namespace tandem::neon
