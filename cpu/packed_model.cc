#include "cpu/packed_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "model/weight_check.h"

namespace tandem {
namespace {

struct PackJob {
  std::string name;
  const WeightView* from;
  PackedMatrix* to;
  size_t offset;  // in the arena
};

int64_t row_bytes(const WeightView& w) {
  const QuantTraits* traits = quant_traits(static_cast<uint32_t>(w.type));
  return w.n_cols / traits->block_size * traits->block_bytes;
}

int64_t n_tiles(const PackedMatrix& w) { return (w.n_rows + kTileRows - 1) / kTileRows; }

std::vector<PackJob> list_jobs(const ModelWeights& weights, PackedModel* model) {
  std::vector<PackJob> jobs;
  jobs.push_back({"token_embedding", &weights.token_embedding, &model->token_embedding, 0});
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    PackedLayer& to = model->layers[i];
    const auto add = [&](const char* role, const WeightView& w, PackedMatrix* p) {
      jobs.push_back({fmt::format("layer {} {}", i, role), &w, p, 0});
    };
    add("wq", from.wq, &to.wq), add("wk", from.wk, &to.wk), add("wv", from.wv, &to.wv);
    add("wo", from.wo, &to.wo), add("w_gate", from.w_gate, &to.w_gate);
    add("w_up", from.w_up, &to.w_up), add("w_down", from.w_down, &to.w_down);
  }
  if (weights.output.data != weights.token_embedding.data) {
    jobs.push_back({"output", &weights.output, &model->output, 0});
  }
  return jobs;
}

void copy_vectors(const ModelWeights& weights, PackedModel* model) {
  model->output_norm = weights.output_norm;
  model->layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    PackedLayer& to = model->layers[i];
    to.attn_norm = from.attn_norm, to.ffn_norm = from.ffn_norm;
    to.attn_post_norm = from.attn_post_norm, to.ffn_post_norm = from.ffn_post_norm;
    to.q_norm = from.q_norm, to.k_norm = from.k_norm;
    to.bq = from.bq, to.bk = from.bk, to.bv = from.bv, to.bo = from.bo;
  }
}

}  // namespace

Result<std::unique_ptr<PackedModel>> PackedModel::pack(const ModelWeights& weights,
                                                       const KernelTable& kernels, OmpTeam* team,
                                                       const std::function<void(float)>& on_progress) {
  auto model = std::make_unique<PackedModel>();
  copy_vectors(weights, model.get());
  std::vector<PackJob> jobs = list_jobs(weights, model.get());

  size_t n_bytes = 0;
  for (PackJob& job : jobs) {
    const WeightView& w = *job.from;
    const size_t size = kernels.packed_bytes(w.type, w.n_rows, w.n_cols);
    if (size == 0) {
      const QuantTraits* traits = quant_traits(static_cast<uint32_t>(w.type));
      return unimplemented(fmt::format("{}: tensor type {} [{} x {}] is not served by the {} kernels; "
                                       "requantize the model",
                                       job.name, traits ? traits->name : "unknown", w.n_rows, w.n_cols,
                                       kernels.isa));
    }
    job.offset = n_bytes;
    n_bytes += (size + 63) / 64 * 64;
  }
  CHECK_ASSIGN(model->bytes, Arena::allocate(n_bytes, "packed weights"));

  int64_t n_done = 0, n_total = 0;
  for (const PackJob& job : jobs) n_total += job.from->n_rows * row_bytes(*job.from);
  for (const PackJob& job : jobs) {
    const WeightView& w = *job.from;
    uint8_t* data = model->bytes.data() + job.offset;
    *job.to = {w.type, w.n_rows, w.n_cols, data};
    const int64_t tiles = n_tiles(*job.to);
    const int64_t slab = std::max<int64_t>(1, (16 << 20) / (kTileRows * row_bytes(w)));
    for (int64_t first = 0; first < tiles; first += slab) {
      const int64_t count = std::min(slab, tiles - first);
      std::atomic<bool> is_finite = true;  // checked here, where the rows are in the cache anyway
      team->run([&](TeamMember& member) {
        member.share(count, 8, [&](int64_t begin, int64_t end) {
          const int64_t row_end = std::min(w.n_rows, (first + end) * kTileRows);
          if (!check_finite_rows(w, (first + begin) * kTileRows, row_end).ok()) is_finite = false;
          kernels.pack_tiles(w.type, w.data, w.n_rows, w.n_cols, first + begin, first + end, data);
        });
      });
      if (!is_finite) return data_loss(job.name + ": " + check_finite_rows(w, 0, w.n_rows).message());
      n_done += count * kTileRows * row_bytes(w);
      if (on_progress) on_progress(std::min(1.0f, static_cast<float>(n_done) / static_cast<float>(n_total)));
    }
  }
  if (weights.output.data == weights.token_embedding.data) model->output = model->token_embedding;
  if (on_progress) on_progress(1.0f);
  return model;
}

}  // namespace tandem
