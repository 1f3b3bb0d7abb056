#include "cpu/packed_model.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "model/weight_check.h"

namespace tandem {
namespace {

struct PackJob {
  std::string name;
  const WeightView* from;
  PackedMatrix* to;
};

int64_t n_tiles(const PackedMatrix& w) { return (w.n_rows + kTileRows - 1) / kTileRows; }

std::vector<PackJob> list_jobs(const ModelWeights& weights, PackedModel* model) {
  std::vector<PackJob> jobs;
  jobs.push_back({"token_embedding", &weights.token_embedding, &model->token_embedding});
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const LayerWeights& from = weights.layers[i];
    PackedLayer& to = model->layers[i];
    const auto add = [&](const char* role, const WeightView& w, PackedMatrix* p) {
      jobs.push_back({fmt::format("layer {} {}", i, role), &w, p});
    };
    add("wq", from.wq, &to.wq), add("wk", from.wk, &to.wk), add("wv", from.wv, &to.wv);
    add("wo", from.wo, &to.wo), add("w_gate", from.w_gate, &to.w_gate);
    add("w_up", from.w_up, &to.w_up), add("w_down", from.w_down, &to.w_down);
  }
  if (weights.output && weights.output.data != weights.token_embedding.data) {
    jobs.push_back({"output", &weights.output, &model->output});
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

size_t source_bytes(const PackJob& job) { return static_cast<size_t>(job.from->n_rows * row_bytes(*job.from)); }

Result<std::vector<PackedPlace>> plan_places(const std::vector<PackJob>& jobs, const KernelTable& kernels,
                                             const PackOptions& options, size_t* n_bytes) {
  std::vector<PackedPlace> places;
  for (const PackJob& job : jobs) {
    const WeightView& w = *job.from;
    const GgmlType type = options.has_lean_set && w.type == GgmlType::kQ8_0 ? GgmlType::kQ8_0Nested : w.type;
    const size_t size = kernels.packed_bytes(type, w.n_rows, w.n_cols);
    if (size == 0) {
      const QuantTraits* traits = quant_traits(static_cast<uint32_t>(w.type));
      return unimplemented(fmt::format("{}: tensor type {} [{} x {}] is not served by the {} kernels; "
                                       "requantize the model",
                                       job.name, traits ? traits->name : "unknown", w.n_rows, w.n_cols,
                                       kernels.isa));
    }
    places.push_back({job.name, type, w.n_rows, w.n_cols, *n_bytes, size});
    *n_bytes += (size + 63) / 64 * 64;
  }
  return places;
}

XXH128_hash_t hash_source(const PackJob& job) { return XXH3_128bits(job.from->data, source_bytes(job)); }

PackCache::Hash combine(const std::vector<XXH128_hash_t>& hashes) {
  const XXH128_hash_t h = XXH3_128bits(hashes.data(), hashes.size() * sizeof(XXH128_hash_t));
  return {h.low64, h.high64};
}

// Of all matrices as they are in the model's file.
PackCache::Hash hash_sources(const std::vector<PackJob>& jobs, OmpTeam* team) {
  std::vector<XXH128_hash_t> hashes(jobs.size());
  team->run([&](TeamMember& member) {
    member.share(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end) {
      for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) hashes[i] = hash_source(jobs[i]);
    });
  });
  return combine(hashes);
}

// One matrix, in slabs. on_slab is called before each with its bytes in the model's file, on_packed after it.
struct SlabHooks {
  std::function<void(const uint8_t*, size_t)> on_slab, on_packed;
};
Status pack_one(const PackJob& job, const KernelTable& kernels, OmpTeam* team, Arena* arena, const PackedPlace& place,
                const SlabHooks& hooks) {
  uint8_t* data = arena->data() + place.offset;
  const WeightView& w = *job.from;
  const int64_t tiles = n_tiles(*job.to);
  const int64_t slab = std::max<int64_t>(1, (16 << 20) / (kTileRows * row_bytes(w)));
  for (int64_t first = 0; first < tiles; first += slab) {
    const int64_t count = std::min(slab, tiles - first);
    const auto byte_of = [&](int64_t tile) {
      return place.offset + place.size / static_cast<size_t>(tiles) * static_cast<size_t>(tile);
    };
    const uint8_t* source = w.data + first * kTileRows * row_bytes(w);
    const size_t n_source =
        static_cast<size_t>((std::min(w.n_rows, (first + count) * kTileRows) - first * kTileRows) * row_bytes(w));
    hooks.on_slab(source, n_source);
    std::atomic<int> touch_error = 0;
    std::atomic<bool> is_finite = true;  // checked here, where the rows are in the cache anyway
    team->run([&](TeamMember& member) {
      member.share(count, 8, [&](int64_t begin, int64_t end) {
        // By the thread that fills it (nearly: a type may keep planes apart), so that its memory is near, and before it
        // does: a lack of memory is an answer.
        const int err = arena->touch(byte_of(first + begin), byte_of(first + end));
        if (err == ENOMEM || err == EFAULT || err == EHWPOISON) touch_error = err;  // others: it comes with its use
        if (touch_error != 0) return;
        const int64_t row_end = std::min(w.n_rows, (first + end) * kTileRows);
        if (!check_finite_rows(w, (first + begin) * kTileRows, row_end).ok()) is_finite = false;
        kernels.pack_tiles(place.type, w.data, w.n_rows, w.n_cols, first + begin, first + end, data);
      });
    });
    if (touch_error != 0)
      return exhausted(fmt::format("no memory for packed weights ({} bytes in all), at {}: {}", arena->size(), job.name,
                                   std::strerror(touch_error)));
    if (!is_finite) return data_loss(job.name + ": " + check_finite_rows(w, 0, w.n_rows).message());
    hooks.on_packed(source, n_source);
  }
  return ok_status();
}

// `hash` is of the sources, and only taken if it is wanted: slab by slab just before the packing, so that a file that
// changes under our hands matches neither stamp nor hash later, and so little of the file is in memory at once.
Status pack_all(const std::vector<PackJob>& jobs, const KernelTable& kernels, OmpTeam* team, const PackOptions& options,
                Arena* arena, const std::vector<PackedPlace>& places, PackCache::Hash* hash) {
  size_t n_done = 0, n_total = 0;
  for (const PackJob& job : jobs) n_total += source_bytes(job);
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  if (!state) return exhausted("no memory for the state of a hash");
  const SlabHooks hooks{[&](const uint8_t* data, size_t n) {
                          if (hash != nullptr) XXH3_128bits_update(state.get(), data, n);
                        },
                        [&](const uint8_t* data, size_t n) {
                          n_done += n;
                          if (options.on_source_read) options.on_source_read(data, n);
                          if (options.on_progress)
                            options.on_progress(static_cast<float>(n_done) / static_cast<float>(n_total));
                        }};
  std::vector<XXH128_hash_t> hashes;
  for (size_t i = 0; i < jobs.size(); ++i) {
    XXH3_128bits_reset(state.get());
    CHECK_OK(pack_one(jobs[i], kernels, team, arena, places[i], hooks));
    hashes.push_back(XXH3_128bits_digest(state.get()));
  }
  if (hash != nullptr) *hash = combine(hashes);
  return ok_status();
}

}  // namespace

WeightBytes PackedModel::weight_bytes(const KernelTable& kernels) const {
  WeightBytes n;
  bool is_nested = false;
  const auto add = [&](const PackedMatrix& w) {
    const PackedMatrix lean = lean_form(w);
    is_nested = is_nested || lean.type != w.type;
    n.full += static_cast<int64_t>(kernels.packed_bytes(w.type, w.n_rows, w.n_cols));
    n.lean += static_cast<int64_t>(kernels.packed_bytes(lean.type, w.n_rows, w.n_cols));
  };
  add(output);
  if (output.data != token_embedding.data) add(token_embedding);
  for (const PackedLayer& l : layers) {
    for (const PackedMatrix* w : {&l.wq, &l.wk, &l.wv, &l.wo, &l.w_gate, &l.w_up, &l.w_down}) add(*w);
  }
  if (!is_nested) n.lean = 0;
  return n;
}

Result<int64_t> PackedModel::bytes_needed(const ModelWeights& weights, const KernelTable& kernels,
                                          const PackOptions& options) {
  PackedModel model;
  model.layers.resize(weights.layers.size());
  size_t n_bytes = 0;
  const std::vector<PackJob> jobs = list_jobs(weights, &model);
  CHECK_OK(plan_places(jobs, kernels, options, &n_bytes).status());
  int64_t n_copies = 0;
  for (const PackJob& job : jobs) n_copies += DenseLibrary::copy_bytes(job.from->type, job.from->n_rows, job.from->n_cols);
  return static_cast<int64_t>(n_bytes) + (options.library != nullptr ? n_copies : 0);
}

Result<std::unique_ptr<PackedModel>> PackedModel::pack(const ModelWeights& weights,
                                                       const KernelTable& kernels, OmpTeam* team,
                                                       const PackOptions& options) {
  PackCache* cache = options.cache;
  auto model = std::make_unique<PackedModel>();
  copy_vectors(weights, model.get());
  const std::vector<PackJob> jobs = list_jobs(weights, model.get());
  size_t n_bytes = 0;
  CHECK_ASSIGN(const std::vector<PackedPlace> places, plan_places(jobs, kernels, options, &n_bytes));
  const auto set_matrices = [&](const uint8_t* data) {
    for (size_t i = 0; i < jobs.size(); ++i) {
      const WeightView& w = *jobs[i].from;
      *jobs[i].to = {places[i].type, w.n_rows, w.n_cols, data + places[i].offset};
    }
    if (weights.output.data == weights.token_embedding.data) model->output = model->token_embedding;
  };
  const auto hash = [&] { return hash_sources(jobs, team); };
  const auto choose = [&]() -> Status {
    if (options.library == nullptr) return ok_status();
    std::vector<const PackedMatrix*> matrices;
    for (const PackJob& job : jobs) matrices.push_back(job.to);
    std::vector<uint32_t> choices = cache != nullptr ? cache->choices() : std::vector<uint32_t>();
    CHECK_ASSIGN(model->library, choose_dense(*options.library, matrices, kernels, team, &choices));
    if (cache != nullptr) cache->set_choices(kernels.isa, std::move(choices));
    return ok_status();
  };
  if (cache != nullptr) {
    auto mapped = cache->load(kernels.isa, places, n_bytes, hash, team);
    if (mapped.ok()) {
      model->bytes = std::move(mapped->bytes);
      set_matrices(mapped->data);
      CHECK_OK(choose());
      return model;
    }
  }
  if (options.only_cached) return not_found("no stored weights");
  CHECK_ASSIGN(model->bytes, Arena::reserve(n_bytes, "packed weights"));  // touched slab by slab
  set_matrices(model->bytes.data());
  PackCache::Hash model_hash{};
  const bool can_store = cache != nullptr && cache->can_store();
  CHECK_OK(pack_all(jobs, kernels, team, options, &model->bytes, places, can_store ? &model_hash : nullptr));
  if (can_store) cache->keep(kernels.isa, places, n_bytes, model_hash, model->bytes.data());
  CHECK_OK(choose());
  return model;
}

}  // namespace tandem
