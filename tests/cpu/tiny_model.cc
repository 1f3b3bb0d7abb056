#include "tests/cpu/tiny_model.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <cmath>
#include <numeric>

#include "cpu/isa_select.h"

namespace tandem {
namespace {

class Maker {
 public:
  Maker(TinyModel* model, GgmlType type, uint32_t seed) : model_(model), type_(type), gen_(seed) {}
  std::vector<float> vector(int64_t n, float center, float spread) {
    std::normal_distribution<float> normal(center, spread);
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = normal(gen_);
    return v;
  }
  WeightView matrix(int64_t n_rows, int64_t n_cols) {
    const QuantTraits* traits = quant_traits(static_cast<uint32_t>(type_));
    REQUIRE(n_cols % traits->block_size == 0);
    const size_t row_bytes = static_cast<size_t>(n_cols / traits->block_size * traits->block_bytes);
    auto bytes = std::make_unique<std::vector<uint8_t>>(row_bytes * static_cast<size_t>(n_rows));
    const float spread = 1.0f / std::sqrt(static_cast<float>(n_cols));
    for (int64_t r = 0; r < n_rows; ++r) {
      const std::vector<float> row = vector(n_cols, 0, spread);
      traits->quantize_row(row.data(), n_cols, bytes->data() + static_cast<size_t>(r) * row_bytes);
    }
    model_->storage.push_back(std::move(bytes));
    return {type_, n_rows, n_cols, model_->storage.back()->data()};
  }

 private:
  TinyModel* model_;
  GgmlType type_;
  std::mt19937 gen_;
};

RopeParams make_rope(int dim, float theta, RopeStyle style, float attention_factor) {
  RopeParams rope{dim, theta, style, {}, attention_factor};
  for (int i = 0; i < dim / 2; ++i) {
    rope.inv_freq.push_back(std::pow(theta, -2.0f * static_cast<float>(i) / static_cast<float>(dim)));
  }
  return rope;
}

ModelConfig make_config(TinyKind kind) {
  ModelConfig c;
  const bool varied = kind == TinyKind::kVaried;
  c.architecture = c.name = "tiny";
  c.n_layers = 2;
  c.hidden_dim = 96;
  c.vocab_size = 101;  // no multiple of a tile
  c.context_tokens = 512;
  c.attention_scale = 0.2f;
  c.tied_embeddings = !varied;
  c.ropes = {make_rope(32, 10000, varied ? RopeStyle::kInterleaved : RopeStyle::kNeox, 1)};
  if (varied) {
    c.norm_eps = 1e-6f;
    c.activation = Activation::kGeluTanhGate;
    c.embedding_scale = 2.5f;
    c.attention_softcap = 5;
    c.logit_softcap = 3;
    c.has_qkv_bias = c.has_qk_norm = c.has_post_norms = true;
    c.ropes.push_back(make_rope(16, 1000, RopeStyle::kNeox, 1.2f));
  }
  for (int i = 0; i < c.n_layers; ++i) {
    LayerConfig l;
    l.n_heads = 6;
    l.n_kv_heads = 2;
    l.head_dim = 32;
    l.ffn_dim = 160;
    l.window = varied && i == 0 ? 20 : 0;
    l.rope = l.kv_group = varied ? i : 0;
    c.layers.push_back(l);
  }
  if (varied) {
    c.kv_groups = {{20, 2, 32, {0}}, {0, 2, 32, {1}}};
  } else {
    c.kv_groups = {{0, 2, 32, {0, 1}}};
  }
  return c;
}

}  // namespace

TinyModel make_tiny_model(TinyKind kind, GgmlType type, uint32_t seed) {
  TinyModel model;
  model.config = make_config(kind);
  const ModelConfig& c = model.config;
  const bool varied = kind == TinyKind::kVaried;
  Maker make(&model, type, seed);
  ModelWeights& w = model.weights;
  w.token_embedding = make.matrix(c.vocab_size, c.hidden_dim);
  w.output = c.tied_embeddings ? w.token_embedding : make.matrix(c.vocab_size, c.hidden_dim);
  w.output_norm = make.vector(c.hidden_dim, 3, 0.3f);
  for (const LayerConfig& l : c.layers) {
    LayerWeights layer;
    const int q_dim = l.n_heads * l.head_dim, kv_dim = l.n_kv_heads * l.head_dim;
    layer.attn_norm = make.vector(c.hidden_dim, 1, 0.3f);
    layer.ffn_norm = make.vector(c.hidden_dim, 1, 0.3f);
    layer.wq = make.matrix(q_dim, c.hidden_dim);
    layer.wk = make.matrix(kv_dim, c.hidden_dim);
    layer.wv = make.matrix(kv_dim, c.hidden_dim);
    layer.wo = make.matrix(c.hidden_dim, q_dim);
    layer.w_gate = make.matrix(l.ffn_dim, c.hidden_dim);
    layer.w_up = make.matrix(l.ffn_dim, c.hidden_dim);
    layer.w_down = make.matrix(c.hidden_dim, l.ffn_dim);
    if (varied) {
      layer.attn_post_norm = make.vector(c.hidden_dim, 1, 0.3f);
      layer.ffn_post_norm = make.vector(c.hidden_dim, 1, 0.3f);
      layer.q_norm = make.vector(l.head_dim, 1, 0.3f);
      layer.k_norm = make.vector(l.head_dim, 1, 0.3f);
      layer.bq = make.vector(q_dim, 0, 0.5f);
      layer.bk = make.vector(kv_dim, 0, 0.5f);
      layer.bv = make.vector(kv_dim, 0, 0.5f);
      layer.bo = make.vector(c.hidden_dim, 0, 0.5f);
    }
    w.layers.push_back(std::move(layer));
  }
  return model;
}

namespace {

std::unique_ptr<Backend> make(const TinyModel& model, const LeanWeights& lean, CpuBackendOptions options, int n_pages) {
  auto backend = create_cpu_backend(model.config, model.weights, options, lean);
  INFO(backend.status().message());
  REQUIRE(backend.ok());
  const Status status =
      (*backend)->reserve_pages(std::vector<int>(model.config.kv_groups.size(), n_pages));
  INFO(status.message());
  REQUIRE(status.ok());
  return std::move(backend).value();
}

}  // namespace

std::unique_ptr<Backend> make_backend(const TinyModel& model, CpuBackendOptions options, int n_pages) {
  return make(model, {}, std::move(options), n_pages);
}

std::unique_ptr<Backend> make_backend_with_lean(const TinyModel& model, const TinyModel& lean, CpuBackendOptions options, int n_pages) {
  LeanWeights weights;
  weights.weights = &lean.weights;
  weights.on_refused = [](const Status& status) { FAIL(status.message()); };
  return make(model, weights, std::move(options), n_pages);
}

std::vector<const KernelTable*> runnable_columns() {
  int n = 0;
  const KernelColumn* columns = kernel_columns(&n);
  std::vector<const KernelTable*> runnable;
  const CpuInfo cpu = detect_cpu();
  for (int i = 0; i < n; ++i) {
    if (select_kernels(cpu, columns[i].table->isa).ok()) runnable.push_back(columns[i].table);
  }
  return runnable;
}

PageDealer::PageDealer(const ModelConfig& config, int n_pages, uint32_t seed)
    : free_(config.kv_groups.size()) {
  std::mt19937 gen(seed);
  for (auto& pages : free_) {
    pages.resize(static_cast<size_t>(n_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), gen);
  }
}

TestSequence PageDealer::deal(std::vector<int32_t> tokens, int page_size) {
  TestSequence sequence;
  const size_t n = (tokens.size() + static_cast<size_t>(page_size) - 1) / static_cast<size_t>(page_size);
  for (auto& pages : free_) {
    REQUIRE(pages.size() >= n);
    sequence.pages.emplace_back(pages.end() - static_cast<ptrdiff_t>(n), pages.end());
    pages.resize(pages.size() - n);
  }
  sequence.tokens = std::move(tokens);
  return sequence;
}

std::vector<int32_t> random_tokens(int n, int vocab_size, uint32_t seed) {
  std::mt19937 gen(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int32_t& t : tokens) t = static_cast<int32_t>(gen() % static_cast<uint32_t>(vocab_size));
  return tokens;
}

void add_item(StepBatch* batch, TestSequence* sequence, int n) {
  StepItem item;
  item.first_pos = sequence->n_done;
  item.first_token = static_cast<int>(batch->tokens.size());
  item.n_tokens = n;
  for (const auto& pages : sequence->pages) item.page_tables.push_back(pages.data());
  for (int i = 0; i < n; ++i) {
    batch->logit_rows.push_back(static_cast<int>(batch->tokens.size()));
    batch->tokens.push_back(sequence->tokens[static_cast<size_t>(sequence->n_done + i)]);
  }
  batch->items.push_back(item);
  sequence->n_done += n;
}

std::vector<float> run_step(Backend* backend, const StepBatch& batch) {
  const Status status = backend->forward(batch);
  INFO(status.message());
  REQUIRE(status.ok());
  std::vector<float> all;
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const auto row = backend->logits(static_cast<int>(i));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

std::vector<float> run_chunked(Backend* backend, TestSequence sequence, int chunk, int n_full) {
  std::vector<float> all;
  while (sequence.n_done < static_cast<int>(sequence.tokens.size())) {
    StepBatch batch;
    const int at = sequence.n_done, left = static_cast<int>(sequence.tokens.size()) - at;
    batch.weights = at < n_full ? WeightSet::kFull : WeightSet::kLean;
    add_item(&batch, &sequence, std::min({chunk, left, at < n_full ? n_full - at : left}));
    const std::vector<float> rows = run_step(backend, batch);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void check_lean_step_is_refused(Backend* backend, int n_pages) {
  CHECK(backend->weight_bytes().lean == 0);
  const ModelConfig& config = backend->config();
  PageDealer dealer(config, n_pages, 28);
  TestSequence sequence = dealer.deal(random_tokens(4, config.vocab_size, 29), 16);
  StepBatch batch;
  add_item(&batch, &sequence, 4);
  batch.weights = WeightSet::kLean;
  const Status status = backend->forward(batch);
  CHECK(status.code() == StatusCode::kInvalidArgument);
  CHECK(status.message() == "step: these weights have no lean set");
  batch.weights = WeightSet::kFull;
  CHECK(backend->forward(batch).ok());
}

}  // namespace tandem
