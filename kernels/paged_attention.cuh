// Attention of decode rows over pages in device memory (flash-decoding): each part of kAttentionPartKeys
// positions of a row is one block of threads, whoever comes last joins the parts in ascending order. Pages have
// the layout of kv_layout.h, the CPU's own, so that a page crosses the bus as it is.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device_acts.cuh"
#include "kernels/kernel_table.h"

namespace tandem {

// Heads of one KV head that one block of threads computes; with more, kv_append must be a launch of its own.
constexpr int kAttentionHeadsAtOnce = 8;

struct PagedAttentionParams {
  KvLayout layout;          // kF16 or kQ8_0; page_size 16 or 32; head_dim a multiple of 8, 8..512
  uint8_t* pool = nullptr;  // device: page p of the group at pool + p * layout.page_bytes, aligned to 64
  // Row m is one token. Its page table is page_tables + table_of[m] * table_stride (table_of null: m), device.
  const int32_t* page_tables = nullptr;
  const int32_t* table_of = nullptr;
  int64_t table_stride = 0;            // pages
  const int32_t* positions = nullptr;  // device [M]; negative: the row is padding, nothing is read or written
  int n_rows = 0;                      // M
  // Parts that the longest row may have: positions / kAttentionPartKeys + 1 (window or not). Rows have fewer
  // at no cost but an empty block of threads, so a graph may be captured for more.
  int max_parts = 1;
  int n_heads = 0;  // multiple of layout.n_kv_heads
  int window = 0;
  float scale = 1.0f, softcap = 0.0f;

  // What the products gave (biases added): q [M][q_stride], k and v [M][kv_stride] floats. Norm per head (q_norm,
  // k_norm [head_dim], or null) and rotation happen here.
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t q_stride = 0, kv_stride = 0;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float norm_eps = 0;
  const float* cos_sin = nullptr;  // of this layer's rope: row m at cos_sin + m * cos_sin_stride, [rope_dim/2][2]
  int64_t cos_sin_stride = 0;      // floats
  int rope_dim = 0;
  bool neox = false;
  // Stores this row's k and v in its page first. Allowed if no two rows share a page table and
  // n_heads / n_kv_heads <= kAttentionHeadsAtOnce; otherwise false, after launch_kv_append.
  bool append = false;

  float* records = nullptr;       // device, attention_record_bytes()
  uint32_t* arrivals = nullptr;   // device [M][n_kv_heads * head groups], zero before the first launch ever
  // Results as activations of n_heads * head_dim columns: blocks need head_dim * heads per KV head to be a
  // multiple of 32 (else give floats, and launch_quantize after). sum_squares null.
  DeviceActs out;
};

// Of records and arrivals for M rows.
size_t attention_record_bytes(const PagedAttentionParams& params);
size_t attention_arrival_bytes(const PagedAttentionParams& params);
bool attention_may_append(const PagedAttentionParams& params);    // the head count's condition
bool attention_may_quantize(const PagedAttentionParams& params);  // out.blocks may be given

// cudaErrorInvalidValue: a condition above does not hold.
cudaError_t launch_paged_attention(const PagedAttentionParams& params, cudaStream_t stream);
// The k and v of all rows (norm, rotation) into their pages: chunks of prompts, and models with many heads a KV
// head. Reads of params what concerns k, v, pages and positions.
cudaError_t launch_kv_append(const PagedAttentionParams& params, cudaStream_t stream);
// acts.floats -> acts.blocks, as quantize_act does it.
cudaError_t launch_quantize(const DeviceActs& acts, int n_rows, cudaStream_t stream);

}  // namespace tandem
