// What CpuForward sums of its products' inputs, against the model computed here in doubles, and that it changes nothing.
#include "cpu/input_squares.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "tests/cpu/tiny_model.h"

namespace tandem {
namespace {

using Row = std::vector<double>;

Row multiply(const WeightView& w, const Row& x) {  // F32 weights
  const auto* data = reinterpret_cast<const float*>(w.data);
  Row out(static_cast<size_t>(w.n_rows));
  for (size_t r = 0; r < out.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) out[r] += static_cast<double>(data[r * x.size() + c]) * x[c];
  }
  return out;
}

Row norm(const Row& x, const std::vector<float>& weight, float eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(eps));
  Row out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * static_cast<double>(weight[i]));
  return out;
}

void add(const Row& y, Row* x) {
  for (size_t i = 0; i < y.size(); ++i) (*x)[i] += y[i];
}

void add_squares(const Row& x, ColumnSquares* squares) {
  for (size_t i = 0; i < x.size(); ++i) squares->sums[i] += x[i] * x[i];
  ++squares->n_rows;
}

// A text of one token: attention has a single key, so its output is the value, for every head of a group.
void forward_alone(const TinyModel& m, int32_t token, InputSquares* squares) {
  const ModelConfig& c = m.config;
  const auto* embedding = reinterpret_cast<const float*>(m.weights.token_embedding.data) + token * c.hidden_dim;
  Row x(embedding, embedding + c.hidden_dim);
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const LayerConfig& l = c.layers[i];
    const LayerWeights& w = m.weights.layers[i];
    const Row normed = norm(x, w.attn_norm, c.norm_eps);
    add_squares(normed, &squares->layers[i].qkv);
    const Row v = multiply(w.wv, normed);
    Row heads;
    for (int h = 0; h < l.n_heads; ++h) {
      const auto begin = v.begin() + h / (l.n_heads / l.n_kv_heads) * l.head_dim;
      heads.insert(heads.end(), begin, begin + l.head_dim);
    }
    add_squares(heads, &squares->layers[i].o);
    add(multiply(w.wo, heads), &x);
    const Row ffn = norm(x, w.ffn_norm, c.norm_eps);
    add_squares(ffn, &squares->layers[i].gate_up);
    Row gate = multiply(w.w_gate, ffn);
    const Row up = multiply(w.w_up, ffn);
    for (size_t j = 0; j < gate.size(); ++j) gate[j] *= up[j] / (1 + std::exp(-gate[j]));
    add_squares(gate, &squares->layers[i].down);
    add(multiply(w.w_down, gate), &x);
  }
  add_squares(norm(x, m.weights.output_norm, c.norm_eps), &squares->output);
}

// Relative to the largest column: a small one may be the difference of large numbers.
void require_close(const ColumnSquares& got, const ColumnSquares& want, const char* what) {
  REQUIRE(got.n_rows == want.n_rows);
  REQUIRE(got.sums.size() == want.sums.size());
  double largest = 0;
  for (const double v : want.sums) largest = std::max(largest, v);
  REQUIRE(largest > 0);
  // Two layers of sums of up to 160 float products, as many roundings of 2^-24 each at most, and squared.
  const double allowed = 2 * 2 * 4 * 160 * std::ldexp(1.0, -24) * largest;
  for (size_t i = 0; i < want.sums.size(); ++i) {
    INFO(what << " column " << i << ": " << got.sums[i] << ", directly " << want.sums[i]);
    REQUIRE(std::fabs(got.sums[i] - want.sums[i]) <= allowed);
  }
}

std::vector<const ColumnSquares*> all_of(const InputSquares& s) {
  std::vector<const ColumnSquares*> all;
  for (const InputSquares::Layer& l : s.layers) all.insert(all.end(), {&l.qkv, &l.o, &l.gate_up, &l.down});
  all.push_back(&s.output);
  return all;
}

CpuBackendOptions options_with(const KernelTable* kernels, int n_threads, InputSquares* squares) {
  CpuBackendOptions options;
  options.kernels = kernels;
  options.n_threads = n_threads;
  options.squares = squares;
  return options;
}

// Squares of a text of 90 tokens.
InputSquares sum_text(const TinyModel& model, CpuBackendOptions options, int chunk, std::vector<float>* logits) {
  InputSquares squares = make_input_squares(model.config);
  options.squares = &squares;
  auto backend = make_backend(model, options, 16);
  PageDealer dealer(model.config, 16, 1);
  *logits = run_chunked(backend.get(), dealer.deal(random_tokens(90, model.config.vocab_size, 2), 16), chunk);
  return squares;
}

}  // namespace

TEST_CASE("the squares of what each product reads are those of the model computed directly") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kF32, 1);
  const auto tokens = random_tokens(20, model.config.vocab_size, 2);
  InputSquares want = make_input_squares(model.config);
  for (const int32_t token : tokens) forward_alone(model, token, &want);

  InputSquares got = make_input_squares(model.config);
  CpuBackendOptions options = options_with(&kernel_table_ref(), 2, &got);
  options.float_activations = true;
  auto backend = make_backend(model, options, 20);
  PageDealer dealer(model.config, 20, 1);
  std::vector<TestSequence> sequences;
  for (const int32_t token : tokens) sequences.push_back(dealer.deal({token}, 16));
  for (size_t first = 0; first < sequences.size(); first += 7) {  // steps of several sequences
    StepBatch batch;
    for (size_t i = first; i < std::min(first + 7, sequences.size()); ++i) add_item(&batch, &sequences[i], 1);
    REQUIRE(backend->forward(batch).ok());
  }
  const char* names[] = {"0 qkv", "0 o", "0 gate_up", "0 down", "1 qkv", "1 o", "1 gate_up", "1 down", "output"};
  const auto got_all = all_of(got), want_all = all_of(want);
  REQUIRE(got_all.size() == std::size(names));
  for (size_t i = 0; i < got_all.size(); ++i) require_close(*got_all[i], *want_all[i], names[i]);
}

TEST_CASE("squares are the same for any number of threads and any cut into steps, and logits as without them") {
  for (const TinyKind kind : {TinyKind::kPlain, TinyKind::kVaried}) {
    const TinyModel model = make_tiny_model(kind, GgmlType::kQ8_0, 3);
    for (const KernelTable* kernels : runnable_columns()) {
      CAPTURE(kernels->isa);
      auto plain = make_backend(model, options_with(kernels, 2, nullptr), 16);
      PageDealer dealer(model.config, 16, 1);
      const std::vector<float> want = run_chunked(plain.get(), dealer.deal(random_tokens(90, model.config.vocab_size, 2), 16), 32);
      std::vector<float> logits;
      const InputSquares first = sum_text(model, options_with(kernels, 1, nullptr), 90, &logits);
      CHECK(std::memcmp(logits.data(), want.data(), want.size() * sizeof(float)) == 0);
      for (const int chunk : {1, 32}) {
        const InputSquares again = sum_text(model, options_with(kernels, 3, nullptr), chunk, &logits);
        const auto a = all_of(first), b = all_of(again);
        for (size_t i = 0; i < a.size(); ++i) {
          CHECK(a[i]->n_rows == 90);
          CHECK(b[i]->n_rows == 90);
          CHECK(a[i]->sums == b[i]->sums);
        }
      }
    }
  }
}

TEST_CASE("past the last K/V only rows with logits are summed") {
  const TinyModel model = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 3);
  InputSquares squares = make_input_squares(model.config);
  auto backend = make_backend(model, options_with(&kernel_table_ref(), 1, &squares), 4);
  PageDealer dealer(model.config, 4, 1);
  TestSequence sequence = dealer.deal(random_tokens(10, model.config.vocab_size, 2), 16);
  StepBatch batch;
  add_item(&batch, &sequence, 10);
  batch.logit_rows = {9};
  REQUIRE(backend->forward(batch).ok());
  CHECK(squares.layers[1].qkv.n_rows == 10);
  CHECK(squares.layers[0].down.n_rows == 10);
  CHECK(squares.layers[1].o.n_rows == 1);
  CHECK(squares.output.n_rows == 1);
}

}  // namespace tandem
