// Reads as the paper: compute() at the end of the file is the model, top to bottom; the functions above it
// are its lines. Every phase ends with the whole team; what a thread computes does not depend on which
// thread it is, so the bits depend on neither team nor timing.
#include "cpu/cpu_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

int64_t n_tiles(const PackedMatrix& w) { return (w.n_rows + kTileRows - 1) / kTileRows; }
size_t round_up(size_t n) { return (n + 63) / 64 * 64; }

// Cuts the step's buffers out of one piece of memory; with a null base it only adds up sizes.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}
  template <typename T>
  T* take(int64_t n) {
    uint8_t* p = base_ ? base_ + used_ : nullptr;
    used_ += round_up(static_cast<size_t>(n) * sizeof(T));
    return reinterpret_cast<T*>(p);
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

}  // namespace

CpuForward::CpuForward(const ModelConfig& config, const PackedModel& model, const KernelTable& kernels,
                       KvPools* kv, OmpTeam* team, bool float_activations, const PackedModel* lean, InputSquares* squares)
    : config_(config), kernels_(kernels), kv_(kv), team_(team),
      float_activations_(float_activations), squares_(squares), plan_(config),
      limits_{kv->layout(0).page_size, INT_MAX, lean != nullptr || model.weight_bytes(kernels).lean > 0, false,
              [kv](int g) { return kv->n_pages(g); }} {
  for (const LayerConfig& l : config.layers) {
    q_dim_ = std::max<int64_t>(q_dim_, static_cast<int64_t>(l.n_heads) * l.head_dim);
    kv_dim_ = std::max<int64_t>(kv_dim_, static_cast<int64_t>(l.n_kv_heads) * l.head_dim);
    ffn_dim_ = std::max<int64_t>(ffn_dim_, l.ffn_dim);
  }
  widest_ = std::max({static_cast<int64_t>(config.hidden_dim), q_dim_, ffn_dim_});
  act_bytes_ = static_cast<size_t>(std::max(act_stride(Acts::kFloat, widest_), act_stride(Acts::kQuantized, widest_)));
  sets_.push_back(set_of(model, squares));
  if (lean != nullptr) sets_.push_back(set_of(*lean, nullptr));
  set_ = &sets_[0];
  for (const RopeParams& rope : config.ropes) {
    rope_offsets_.push_back(rope_stride_);
    rope_stride_ += rope.dim;
  }
}

CpuForward::Set CpuForward::set_of(const PackedModel& packed, InputSquares* squares) const {
  Set set{&packed, {}, {}};
  for (const PackedLayer& w : packed.layers) {
    InputSquares::Layer* sums = squares ? &squares->layers[set.inputs.size()] : nullptr;
    set.inputs.push_back({{acts_of({&w.wq, &w.wk, &w.wv}), sums ? &sums->qkv : nullptr},
                          {acts_of({&w.wo}), sums ? &sums->o : nullptr},
                          {acts_of({&w.w_gate, &w.w_up}), sums ? &sums->gate_up : nullptr},
                          {acts_of({&w.w_down}), sums ? &sums->down : nullptr}});
  }
  if (packed.output.data != nullptr) set.output_input = {acts_of({&packed.output}), squares ? &squares->output : nullptr};
  return set;
}

// Sets the buffers of a step of n_tokens, cut out of `base`; with null only their size counts.
size_t CpuForward::place_step(uint8_t* base, int64_t n_tokens) {
  Carver carver(base);
  x_ = carver.take<float>(n_tokens * config_.hidden_dim);
  branch_ = carver.take<float>(n_tokens * config_.hidden_dim);
  act_ = carver.take<uint8_t>(n_tokens * static_cast<int64_t>(act_bytes_));
  if (squares_ != nullptr) float_act_ = carver.take<float>(n_tokens * widest_);
  q_ = carver.take<float>(n_tokens * q_dim_);
  attn_ = carver.take<float>(n_tokens * q_dim_);
  k_ = carver.take<float>(n_tokens * kv_dim_);
  v_ = carver.take<float>(n_tokens * kv_dim_);
  gate_ = carver.take<float>(n_tokens * ffn_dim_);
  up_ = carver.take<float>(n_tokens * ffn_dim_);
  cos_sin_ = carver.take<float>(n_tokens * rope_stride_);
  return carver.used();
}

size_t CpuForward::scratch_of_a_thread() const {
  size_t attention_bytes = 0;
  for (size_t i = 0; i < config_.layers.size(); ++i) {
    AttentionParams p;
    p.layout = kv_->layout(static_cast<int>(i));
    p.n_heads = config_.layers[i].n_heads;
    attention_bytes = std::max(attention_bytes, kernels_.attention_scratch_bytes(p, kTokensPerPiece));
  }
  return round_up(std::max(attention_bytes, static_cast<size_t>(widest_) * sizeof(float)));
}

int64_t CpuForward::most_scratch_bytes(int n_tokens, int n_logit_rows, int context_tokens) const {
  CpuForward sizes(config_, *sets_[0].packed, kernels_, kv_, team_, float_activations_, nullptr, squares_);
  const size_t row = static_cast<size_t>(config_.vocab_size) * sizeof(float);
  const int64_t records = plan_.most_record_floats(team_->n_threads(), n_tokens, context_tokens);
  return static_cast<int64_t>(sizes.place_step(nullptr, std::max(n_tokens, std::min(2 * n_tokens, 64))) +
                              static_cast<size_t>(records) * sizeof(float) +
                              row * static_cast<size_t>(std::max(n_logit_rows, std::min(2 * n_logit_rows, 64))) +
                              scratch_of_a_thread() * static_cast<size_t>(team_->n_threads()));
}

// Buffers grow by doubling up to the largest step; a steady load allocates nothing.
Status CpuForward::reserve(int n_tokens, int n_logit_rows) {
  if (n_tokens > max_tokens_) {
    const int64_t M = std::max(n_tokens, std::min(2 * max_tokens_, 64));
    max_tokens_ = 0;
    step_memory_ = Arena();
    CHECK_ASSIGN(step_memory_, Arena::allocate(place_step(nullptr, M), fmt::format("a step of {} tokens", M)));
    place_step(step_memory_.data(), M);
    max_tokens_ = static_cast<int>(M);
  }
  if (n_logit_rows > max_logit_rows_) {
    const size_t row = static_cast<size_t>(config_.vocab_size) * sizeof(float);
    const int R = std::max(n_logit_rows, std::min(2 * max_logit_rows_, 64));
    max_logit_rows_ = 0;
    logit_memory_ = Arena();
    CHECK_ASSIGN(logit_memory_,
                 Arena::allocate(row * static_cast<size_t>(R), fmt::format("logits of {} tokens", R)));
    logits_ = reinterpret_cast<float*>(logit_memory_.data());
    max_logit_rows_ = R;
  }
  const size_t needed = scratch_of_a_thread();
  if (needed > thread_bytes_) {
    CHECK_ASSIGN(thread_memory_, Arena::allocate(needed * static_cast<size_t>(team_->n_threads()),
                                                 "scratch of the CPU team"));
    thread_bytes_ = needed;
  }
  return ok_status();
}

// Records of long rows whose attention several threads share.
Status CpuForward::reserve_records() {
  const int64_t needed = plan_.n_record_floats();
  if (needed <= max_record_floats_) return ok_status();
  // A context grows step by step; an eighth more each time keeps near what most_scratch_bytes says.
  const int64_t n = needed + needed / 8;
  max_record_floats_ = 0;
  record_memory_ = Arena();
  CHECK_ASSIGN(record_memory_, Arena::allocate(static_cast<size_t>(n) * sizeof(float), "attention in parts"));
  max_record_floats_ = n;
  return ok_status();
}

Status CpuForward::run(const StepBatch& batch) {
  CHECK_OK(check_step(batch, config_, limits_));
  set_ = batch.weights == WeightSet::kLean ? &sets_.back() : &sets_.front();
  CHECK_OK(reserve(static_cast<int>(batch.tokens.size()), static_cast<int>(batch.logit_rows.size())));
  plan_.build(batch, team_->n_threads());
  CHECK_OK(reserve_records());
  team_->run([this](TeamMember& t) { compute(t); });
  if (has_library_failed_) return internal_error("the library for dense weights failed; cpu.deterministic = true runs without it");
  return ok_status();
}

std::span<const float> CpuForward::logits(int i) const {
  const size_t vocab = static_cast<size_t>(config_.vocab_size);
  return {logits_ + static_cast<size_t>(i) * vocab, vocab};
}

std::span<const float> CpuForward::hidden() const {
  return {x_, static_cast<size_t>(plan_.n_tokens()) * static_cast<size_t>(config_.hidden_dim)};
}

uint8_t* CpuForward::thread_scratch(const TeamMember& t) const {
  return thread_memory_.data() + static_cast<size_t>(t.index()) * thread_bytes_;
}

CpuForward::Acts CpuForward::acts_of(std::initializer_list<const PackedMatrix*> weights) const {
  const bool are_dense = std::all_of(weights.begin(), weights.end(), [](const PackedMatrix* w) {
    return quant_traits(static_cast<uint32_t>(w->type))->block_size == 1;
  });
  return float_activations_ || are_dense ? Acts::kFloat : Acts::kQuantized;
}

// Bytes of a row.
int64_t CpuForward::act_stride(Acts acts, int64_t n_cols) const {
  if (acts == Acts::kQuantized) return static_cast<int64_t>(kernels_.act_row_bytes(n_cols));
  return float_act_stride(n_cols) * int64_t{sizeof(float)};
}

// Row `row` of what the next product reads. Quantized once, however many products follow.
void CpuForward::store_activations(int64_t row, const float* x, int64_t n_cols, const Input& input) {
  uint8_t* act = act_ + row * act_stride(input.acts, n_cols);
  if (input.squares != nullptr) std::copy_n(x, n_cols, float_act_ + row * n_cols);
  if (input.acts == Acts::kFloat) {
    std::copy_n(x, n_cols, reinterpret_cast<float*>(act));
  } else {
    kernels_.quantize_act(x, n_cols, act);
  }
}

// Products of the same activations, shared out together; the library's apart, in whole blocks of its rows.
void CpuForward::multiply(TeamMember& t, int64_t n_rows, const Input& input, std::initializer_list<Product> products) {
  if (input.squares != nullptr) add_squares(t, n_rows, input.squares);
  const Acts acts = input.acts;
  const int64_t n_library = n_rows / LibraryMatrix::kRows * LibraryMatrix::kRows;
  const LibraryMatrices& library = set_->packed->library;
  if (acts != Acts::kFloat || float_activations_ || library.empty() || n_library == 0)
    return multiply_rows(t, 0, n_rows, acts, {products.begin(), products.size()});
  Product librarys[3], ours[3];
  size_t n_librarys = 0, n_ours = 0;
  for (const Product& p : products) (library.contains(p.weight->data) ? librarys[n_librarys++] : ours[n_ours++]) = p;
  if (n_ours > 0) multiply_rows(t, 0, n_rows, acts, {ours, n_ours});
  if (n_librarys == 0) return;
  multiply_by_library(t, n_library, {librarys, n_librarys});
  if (n_library < n_rows) multiply_rows(t, n_library, n_rows, acts, {librarys, n_librarys});
}

// Columns are shared out, not rows: each sum then has one order.
void CpuForward::add_squares(TeamMember& t, int64_t n_rows, ColumnSquares* squares) {
  const int64_t n_cols = static_cast<int64_t>(squares->sums.size());
  if (t.index() == 0) squares->n_rows += n_rows;
  t.share(n_cols, 64, [&](int64_t begin, int64_t end) {
    double* sums = squares->sums.data();
    for (int64_t r = 0; r < n_rows; ++r) {
      const float* x = float_act_ + r * n_cols;
      for (int64_t c = begin; c < end; ++c) sums[c] += static_cast<double>(x[c]) * static_cast<double>(x[c]);
    }
  });
}

void CpuForward::multiply_by_library(TeamMember& t, int64_t n_rows, std::span<const Product> products) {
  const int64_t K = products[0].weight->n_cols, n_blocks = n_rows / LibraryMatrix::kRows;
  for (const Product& p : products) {
    const LibraryMatrix& w = *set_->packed->library.at(p.weight->data);
    t.share(n_blocks * w.n_slices(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / w.n_slices() * LibraryMatrix::kRows;
        const auto* x = reinterpret_cast<const float*>(act_ + row * act_stride(Acts::kFloat, K));
        if (!w.multiply(static_cast<int>(i % w.n_slices()), x, p.out + row * p.out_stride).ok()) has_library_failed_ = true;
      }
    });
  }
}

// In the step's set; one that has weights of its own has none of two forms.
PackedMatrix CpuForward::weight_of(const Product& p) const {
  return plan_.batch().weights == WeightSet::kLean ? lean_form(*p.weight) : *p.weight;
}

// Rows are taken in blocks that stay in the second cache while the tiles of weights pass by.
void CpuForward::multiply_rows(TeamMember& t, int64_t row_begin, int64_t row_end, Acts acts,
                               std::span<const Product> products) {
  const int64_t n_rows = row_end - row_begin;
  constexpr int64_t kCacheBytes = 384 << 10;
  constexpr int64_t kDenseColumns = 1024;  // a pass of matmul_dense
  const int64_t K = products.begin()->weight->n_cols, row_bytes = act_stride(acts, K);
  const int64_t cached = acts == Acts::kFloat ? std::min(row_bytes, kDenseColumns * int64_t{sizeof(float)}) : row_bytes;
  const int64_t unit = acts == Acts::kFloat ? 12 : 16;  // rows a kernel takes at once, or a multiple
  const int64_t rows_per_block = std::clamp<int64_t>(kCacheBytes / cached / unit * unit, unit, 256 / unit * unit);
  const auto matmul_float = float_activations_ ? kernels_.matmul_f32 : kernels_.matmul_dense;
  const int64_t n_blocks = (n_rows + rows_per_block - 1) / rows_per_block;
  int64_t tiles = 0;
  for (const Product& p : products) tiles += n_tiles(*p.weight);

  const int64_t pieces_per_thread = n_rows > 8 ? 8 : 4;
  const int64_t grain = std::max<int64_t>(1, tiles * n_blocks / (t.size() * pieces_per_thread));
  t.share(n_blocks * tiles, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      // The part of [begin, end) that lies in one block of rows and in one matrix.
      const int64_t block_row = begin / tiles * rows_per_block, first_row = row_begin + block_row;
      int64_t tile = begin % tiles;
      const Product* p = products.data();
      while (tile >= n_tiles(*p->weight)) tile -= n_tiles(*p++->weight);
      const int64_t last = std::min(n_tiles(*p->weight), tile + (end - begin));
      const int64_t M = std::min(rows_per_block, n_rows - block_row);
      const uint8_t* act = act_ + first_row * row_bytes;
      float* out = p->out + first_row * p->out_stride;
      if (acts == Acts::kFloat) {
        matmul_float(weight_of(*p), tile, last, reinterpret_cast<const float*>(act),
                     row_bytes / int64_t{sizeof(float)}, M, out, p->out_stride);
      } else {
        kernels_.matmul(weight_of(*p), tile, last, act, M, out, p->out_stride);
      }
      begin += last - tile;
    }
  });
}

// cos and sin of every pair at one position, for each rope of the model: [dim / 2][2] one after another.
void CpuForward::compute_rotations(int64_t token) {
  const int pos = plan_.place(token).pos;
  for (size_t r = 0; r < config_.ropes.size(); ++r) {
    const RopeParams& rope = config_.ropes[r];
    float* out = cos_sin_ + token * rope_stride_ + rope_offsets_[r];
    for (int i = 0; i < rope.dim / 2; ++i) {
      const double angle = static_cast<double>(pos) * static_cast<double>(rope.inv_freq[static_cast<size_t>(i)]);
      out[2 * i] = static_cast<float>(std::cos(angle)) * rope.attention_factor;
      out[2 * i + 1] = static_cast<float>(std::sin(angle)) * rope.attention_factor;
    }
  }
}

// x = embedding of each token, normed for the first layer.
void CpuForward::embed(TeamMember& t) {
  const int64_t hidden = config_.hidden_dim;
  t.share(plan_.n_tokens(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* x = x_ + i * hidden;
      kernels_.packed_row(set_->packed->token_embedding, plan_.batch().tokens[static_cast<size_t>(i)], x);
      if (config_.embedding_scale != 1.0f) {
        for (int64_t d = 0; d < hidden; ++d) x[d] *= config_.embedding_scale;
      }
      compute_rotations(i);
      norm_to_activations(t, i, x, set_->packed->layers[0].attn_norm, set_->inputs[0].qkv);
    }
  });
}

void CpuForward::norm_to_activations(const TeamMember& t, int64_t row, const float* x,
                                     const std::vector<float>& weight, const Input& input) {
  float* normed = reinterpret_cast<float*>(thread_scratch(t));
  kernels_.rms_norm(x, weight.data(), config_.norm_eps, config_.hidden_dim, normed);
  store_activations(row, normed, config_.hidden_dim, input);
}

// x += branch (with bias and post-norm where the model has them); returns x.
const float* CpuForward::add_branch(const Rows& rows, int64_t row, const std::vector<float>& bias,
                                    const std::vector<float>& post_norm) {
  const int64_t hidden = config_.hidden_dim;
  float* branch = branch_ + row * hidden;
  float* x = x_ + rows.token(row) * hidden;
  if (!bias.empty()) kernels_.add(bias.data(), hidden, branch);
  if (!post_norm.empty()) kernels_.rms_norm(branch, post_norm.data(), config_.norm_eps, hidden, branch);
  kernels_.add(branch, hidden, x);
  return x;
}

void CpuForward::add_and_norm(TeamMember& t, const Rows& rows, const std::vector<float>& bias,
                              const std::vector<float>& post_norm, const std::vector<float>& next_norm,
                              const Input& next) {
  t.share(rows.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = add_branch(rows, r, bias, post_norm);
      if (!next_norm.empty()) norm_to_activations(t, r, x, next_norm, next);
    }
  });
}

// Biases, norms of q and k per head, rotation; then k and v go to their page.
void CpuForward::rotate_and_store_kv(TeamMember& t, int layer) {
  const LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
  const PackedLayer& w = set_->packed->layers[static_cast<size_t>(layer)];
  const RopeParams& rope = config_.ropes[static_cast<size_t>(l.rope)];
  const bool is_neox = rope.style == RopeStyle::kNeox;
  const KvLayout& layout = kv_->layout(layer);
  const int64_t q_dim = static_cast<int64_t>(l.n_heads) * l.head_dim;
  const int64_t kv_dim = static_cast<int64_t>(l.n_kv_heads) * l.head_dim;
  const auto prepare = [&](float* x, int n_heads, const std::vector<float>& bias,
                           const std::vector<float>& norm, const float* cos_sin) {
    const int64_t n = static_cast<int64_t>(n_heads) * l.head_dim;
    if (!bias.empty()) kernels_.add(bias.data(), n, x);
    for (int h = 0; !norm.empty() && h < n_heads; ++h) {
      float* head = x + static_cast<int64_t>(h) * l.head_dim;
      kernels_.rms_norm(head, norm.data(), config_.norm_eps, l.head_dim, head);
    }
    kernels_.rope(x, n_heads, l.head_dim, rope.dim, cos_sin, is_neox);
  };
  t.share(plan_.n_tokens(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [item, pos] = plan_.place(i);
      const float* cos_sin = cos_sin_ + i * rope_stride_ + rope_offsets_[static_cast<size_t>(l.rope)];
      float* k = k_ + i * kv_dim;
      float* v = v_ + i * kv_dim;
      prepare(q_ + i * q_dim, l.n_heads, w.bq, w.q_norm, cos_sin);
      prepare(k, l.n_kv_heads, w.bk, w.k_norm, cos_sin);
      if (!w.bv.empty()) kernels_.add(w.bv.data(), kv_dim, v);
      const PageId page = item->page_tables[static_cast<size_t>(l.kv_group)][pos / layout.page_size];
      kernels_.kv_append(layout, kv_->page(l.kv_group, page), pos % layout.page_size, k, v);
    }
  });
}

void CpuForward::attend(TeamMember& t, int layer) {
  const LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
  const int64_t q_dim = static_cast<int64_t>(l.n_heads) * l.head_dim;
  const std::vector<AttentionPiece>& pieces = plan_.pieces(l.kv_group);
  t.share(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const AttentionPiece& piece = pieces[static_cast<size_t>(i)];
      const StepItem& item = *piece.item;
      AttentionParams p;
      p.layout = kv_->layout(layer);
      p.pool = kv_->pool(l.kv_group);
      p.page_table = item.page_tables[static_cast<size_t>(l.kv_group)];
      p.q = q_ + item.first_token * q_dim;
      p.out = attn_ + item.first_token * q_dim;
      p.q_stride = p.out_stride = q_dim;
      p.n_heads = l.n_heads;
      p.first_pos = item.first_pos;
      p.n_tokens = item.n_tokens;
      p.window = l.window;
      p.scale = config_.attention_scale;
      p.softcap = config_.attention_softcap;
      if (piece.part_begin == piece.part_end) {
        kernels_.attention(p, piece.kv_head, piece.token_begin, piece.token_end, thread_scratch(t));
        continue;
      }
      kernels_.attention_parts(p, piece.kv_head, piece.token_begin, piece.token_end, piece.part_begin, piece.part_end,
                               reinterpret_cast<float*>(record_memory_.data()) + piece.records, piece.stride,
                               thread_scratch(t));
    }
  });
}

// The heads of a token whose attention was computed in parts.
void CpuForward::join_attention(const TeamMember& t, int64_t token, int layer) {
  const LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
  const int group = l.n_heads / l.n_kv_heads;
  const int64_t record_floats = attention_record_floats(l.head_dim);
  for (int kv_head = 0; kv_head < l.n_kv_heads; ++kv_head) {
    const SplitToken& split = plan_.split(l.kv_group, token, kv_head);
    if (split.n_parts == 0) continue;
    const float* record = reinterpret_cast<const float*>(record_memory_.data()) + split.records +
                          split.index * group * record_floats;
    float* out = attn_ + (token * l.n_heads + kv_head * group) * l.head_dim;
    for (int h = 0; h < group; ++h, record += record_floats, out += l.head_dim) {
      kernels_.attention_join(kv_->layout(layer), record, split.n_parts, split.stride, out, thread_scratch(t));
    }
  }
}

// What attention found becomes the activations of the product with wo.
void CpuForward::store_attention(TeamMember& t, const Rows& rows, int layer) {
  const LayerConfig& l = config_.layers[static_cast<size_t>(layer)];
  const int64_t q_dim = static_cast<int64_t>(l.n_heads) * l.head_dim;
  t.share(rows.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      join_attention(t, rows.token(r), layer);
      store_activations(r, attn_ + rows.token(r) * q_dim, q_dim, set_->inputs[static_cast<size_t>(layer)].o);
    }
  });
}

// gate = activation(gate) * up.
void CpuForward::activate(TeamMember& t, const Rows& rows, int64_t ffn_dim, const Input& input) {
  const auto gated = config_.activation == Activation::kSiluGate ? kernels_.silu_mul : kernels_.gelu_tanh_mul;
  t.share(rows.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* gate = gate_ + i * ffn_dim;
      gated(gate, up_ + i * ffn_dim, ffn_dim, gate);
      store_activations(i, gate, ffn_dim, input);
    }
  });
}

void CpuForward::cap_logits(TeamMember& t) {
  const float cap = config_.logit_softcap;
  const int64_t n = static_cast<int64_t>(plan_.n_logit_rows()) * config_.vocab_size;
  t.share(n, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) logits_[i] = cap * std::tanh(logits_[i] / cap);
  });
}

void CpuForward::compute(TeamMember& t) {
  const int64_t M = plan_.n_tokens();
  const std::vector<int>& logit_rows = plan_.batch().logit_rows;
  const int64_t hidden = config_.hidden_dim;
  static const std::vector<float> kNone;
  const PackedModel& model = *set_->packed;
  embed(t);
  for (int i = 0; i < config_.n_layers; ++i) {
    const LayerConfig& l = config_.layers[static_cast<size_t>(i)];
    const PackedLayer& w = model.layers[static_cast<size_t>(i)];
    const int64_t q_dim = static_cast<int64_t>(l.n_heads) * l.head_dim;
    const int64_t kv_dim = static_cast<int64_t>(l.n_kv_heads) * l.head_dim;
    const LayerInputs& inputs = set_->inputs[static_cast<size_t>(i)];
    const bool is_last = i + 1 == config_.n_layers;
    const Input& next = is_last ? set_->output_input : set_->inputs[static_cast<size_t>(i) + 1].qkv;
    const std::vector<float>& next_norm = is_last ? model.output_norm : model.layers[i + 1].attn_norm;  // none: the end

    // Attention.
    multiply(t, M, inputs.qkv, {{&w.wq, q_, q_dim}, {&w.wk, k_, kv_dim}, {&w.wv, v_, kv_dim}});
    rotate_and_store_kv(t, i);
    attend(t, i);
    // Past the last K/V, only the tokens go on whose logits somebody asked for.
    const Rows rows = is_last && ends_with_logits() ? Rows{logit_rows.data(), static_cast<int64_t>(logit_rows.size())} : Rows{nullptr, M};
    store_attention(t, rows, i);
    multiply(t, rows.count, inputs.o, {{&w.wo, branch_, hidden}});
    add_and_norm(t, rows, w.bo, w.attn_post_norm, w.ffn_norm, inputs.gate_up);

    // Feed-forward.
    multiply(t, rows.count, inputs.gate_up, {{&w.w_gate, gate_, l.ffn_dim}, {&w.w_up, up_, l.ffn_dim}});
    activate(t, rows, l.ffn_dim, inputs.down);
    multiply(t, rows.count, inputs.down, {{&w.w_down, branch_, hidden}});
    add_and_norm(t, rows, kNone, w.ffn_post_norm, next_norm, next);
  }

  // Logits.
  if (!ends_with_logits()) return;
  multiply(t, static_cast<int64_t>(logit_rows.size()), set_->output_input, {{&model.output, logits_, config_.vocab_size}});
  if (config_.logit_softcap > 0) cap_logits(t);
}

}  // namespace tandem
