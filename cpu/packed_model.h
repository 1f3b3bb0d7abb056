// A model's weights in the form the chosen kernels read: matrices packed into tiles, norms and biases as
// floats. Immutable after pack().
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "cpu/arena.h"
#include "cpu/dense_choice.h"
#include "cpu/omp_team.h"
#include "cpu/pack_cache.h"
#include "kernels/kernel_table.h"
#include "model/backend.h"
#include "model/weights.h"

namespace tandem {

struct PackedLayer {
  std::vector<float> attn_norm, ffn_norm;            // [hidden_dim]
  std::vector<float> attn_post_norm, ffn_post_norm;  // [hidden_dim] or empty
  std::vector<float> q_norm, k_norm;                 // [head_dim] or empty
  std::vector<float> bq, bk, bv, bo;                 // biases or empty
  PackedMatrix wq, wk, wv, wo, w_gate, w_up, w_down;
};

struct PackOptions {
  // Q8_0 matrices are packed nested: the same bits and bytes, half of which are the lean set. Backends, who know the
  // whole model, do so only where they are most of it (is_mostly_q8_0).
  bool has_lean_set = true;
  std::function<void(float)> on_progress;  // on the calling thread, 0..1; or empty
  // Bytes of the model's file once they have been read for the last time; or empty.
  std::function<void(const uint8_t*, size_t)> on_source_read;
  PackCache* cache = nullptr;  // matrices are mapped from it if it has them, else it keeps what it may store
  bool only_cached = false;    // and kNotFound if it has not
  const DenseLibrary* library = nullptr;  // for dense weights, where it measures faster; null: it may not serve
};

struct PackedModel {
  PackedMatrix token_embedding;    // [vocab_size][hidden_dim]
  PackedMatrix output;             // the same bytes as token_embedding when tied
  std::vector<float> output_norm;  // [hidden_dim]
  std::vector<PackedLayer> layers;
  Arena bytes;  // of the matrices: own memory, or a mapped file
  LibraryMatrices library;  // copies of some, by their packed bytes

  // What the matrices of a set take; lean: 0 where none is nested.
  WeightBytes weight_bytes(const KernelTable& kernels) const;

  // Packs with all threads of `team`. kUnimplemented names the tensor whose type the kernels do not serve;
  // kExhausted names the size.
  static Result<std::unique_ptr<PackedModel>> pack(const ModelWeights& weights, const KernelTable& kernels,
                                                   OmpTeam* team, const PackOptions& options);
  // Size of `bytes`, and with a library of all copies it might choose. kUnimplemented as above.
  static Result<int64_t> bytes_needed(const ModelWeights& weights, const KernelTable& kernels, const PackOptions& options);
};

}  // namespace tandem
