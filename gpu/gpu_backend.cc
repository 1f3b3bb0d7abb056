// The device as a Backend. DESIGN. A decode step is one graph and one draw; while the host reads what was drawn,
// the next step runs already, from the tokens and positions that the draw left in device memory. It is a guess that
// the same sequences go on with the same set of weights: forward() compares, and where the guess was wrong the step is run
// again. What the guess wrote then is K/V of a position that a living sequence computes again before anything reads it, or
// that nobody reads.
#include "gpu/gpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/mib.h"
#include "gpu/device_sampler.h"
#include "gpu/gpu_forward.h"
#include "gpu/step_graph.h"
#include "kernels/tile_layout.h"
#include "model/stage.h"
#include "model/step_check.h"

namespace tandem {
namespace {

constexpr int kSliceRows = 64;            // of a chunk of a prompt: bounds the workspace
constexpr int64_t kMostRecordBytes = 64 << 20;  // of attention in parts, for a long context
constexpr int kUploadSlots = 3;
// Left free where the budget is what the device has: graphs, the driver's own.
constexpr int64_t kReserveBytes = 256 << 20;

int round_up_power(int n) { return static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(1, n)))); }

class GpuBackend : public Backend {
 public:
  // `config`: of the layers from options.first_layer on.
  GpuBackend(ModelConfig config, const GpuFacts& gpu, GpuOptions options)
      : config_(std::move(config)), gpu_(gpu), options_(std::move(options)), kv_(config_, options_.kv_type, options_.page_size),
        forward_(config_, weights_, kv_, options_.float_activations),
        limits_{options_.page_size, options_.context_tokens, false, takes_hidden(), [this](int g) { return kv_.n_device_pages(g); }} {}

  Status plan(const ModelWeights& weights);
  GpuMemory memory() const;
  Status load(const ModelWeights& weights);

  const ModelConfig& config() const override { return config_; }
  std::vector<int64_t> page_bytes() const override { return kv_.page_bytes(); }
  Status reserve_pages(const std::vector<int>& n_pages) override {
    return reserve_tiers(n_pages, std::vector<int>(n_pages.size(), 0));
  }
  Status reserve_tiers(const std::vector<int>& n_pages, const std::vector<int>& n_swap_pages) override;
  WeightBytes weight_bytes() const override { return weights_.weight_bytes(); }
  bool attends_to_swapped() const override { return false; }
  Status place_pages(const std::vector<int>&, const std::vector<uint8_t*>&) override {
    return internal_error("pages of a device are not placed in host memory");
  }
  Status import_page(int group, PageId to, const std::function<Status(uint8_t*)>& fill) override;
  Status forward(const StepBatch& batch) override;
  std::span<const float> logits(int i) override;
  Status sample(std::span<const SampleRequest> requests, std::span<SampleResult> results) override;
  Status copy_pages(std::span<const PageCopy> copies) override;
  std::string description() const override {
    return fmt::format("gpu {} sm_{} driver {}", gpu_.name, gpu_.sm, gpu_.driver);
  }

 private:
  struct Upload {  // pinned: inputs [4][max_rows], then tables [max_rows][stride] of each group; hidden: tiles
    size_t offset = 0, hidden_offset = 0;
    CudaEvent done;
    bool is_used = false;
  };
  Status run_decode(const StepBatch& batch);
  Status run_slices(const StepBatch& batch);
  Status run_slice(const StepBatch& batch, int first_row, int n_rows, size_t* next_logit);
  Status launch(const StepShape& shape);
  Status send_inputs(int n_rows, const int32_t* tokens, const int32_t* positions, const int32_t* table_of, const int32_t* logit_rows, int n_logit_rows);
  Status send_table(int row, const StepItem& item, int last_pos);
  Status send_hidden(const float* rows, int n_rows, std::vector<int32_t>* tokens);
  bool takes_hidden() const { return options_.first_layer > 0; }
  Status next_upload();
  Status choose_paths();
  Result<float> time_step(WeightSet set, int n_rows, DotPath path, cudaEvent_t begin, cudaEvent_t end);
  bool is_guessed(const StepBatch& batch) const;
  bool may_run_ahead() const;
  Status keep_logits(int first, int n);
  int parts_of(int last_pos) const { return last_pos / kAttentionPartKeys + 1; }
  bool is_in_tables(int group, PageId page) const;

  const ModelConfig config_;
  const GpuFacts gpu_;
  const GpuOptions options_;
  DeviceWeights weights_;
  KvPages kv_;
  GpuForward forward_;
  StepLimits limits_;
  DeviceSampler sampler_;
  StepGraphs graphs_;
  CudaStream stream_;
  CudaEvent step_done_, ordered_;
  PinnedPool pinned_;
  Upload uploads_[kUploadSlots];
  int upload_ = 0;
  size_t host_logits_at_ = 0;

  std::vector<std::vector<PageId>> tables_;  // per group: [max_rows][stride], as the device has them
  int n_table_rows_ = 0;                     // rows of them that the last step used
  // The last step.
  int n_rows_ = 0, n_logit_rows_ = 0;
  WeightSet set_ = WeightSet::kFull;
  bool is_decode_ = false, are_logits_kept_ = false;
  std::vector<int> positions_;               // of a decode step
  std::vector<float> logits_;                // [n_logit_rows][vocab], when asked for
  // The guess that runs: rows of positions_ + 1 with these tokens and the last step's set.
  bool has_guess_ = false;
  std::vector<int32_t> guessed_tokens_;
  bool has_unseen_work_ = false;             // launched, and the host does not know that it has ended
  SamplerScratch scratch_;
};

Status GpuBackend::plan(const ModelWeights& weights) {
  CHECK_OK(weights_.plan(config_, weights, options_.has_lean_set));
  limits_.has_lean_set = weights_.weight_bytes().lean > 0;
  int64_t record_bytes = 0;  // of a row
  for (const LayerConfig& l : config_.layers) {
    const int64_t parts = options_.context_tokens / kAttentionPartKeys + 2;
    record_bytes = std::max(record_bytes, l.n_heads * parts * attention_record_floats(l.head_dim) * int64_t{sizeof(float)});
  }
  const int affordable = static_cast<int>(std::max<int64_t>(1, kMostRecordBytes / std::max<int64_t>(1, record_bytes)));
  const int wanted = std::max(kSliceRows, round_up_power(options_.max_batch_size));
  const int max_rows = std::max(1, static_cast<int>(std::bit_floor(static_cast<unsigned>(std::min(wanted, affordable)))));
  const int max_logit_rows = std::min(max_rows, round_up_power(options_.max_batch_size));
  forward_.plan(max_rows, max_logit_rows, options_.context_tokens, takes_hidden());
  sampler_.plan(max_logit_rows, config_.vocab_size, options_.context_tokens);
  return ok_status();
}

GpuMemory GpuBackend::memory() const {
  GpuMemory m;
  m.budget_bytes = options_.memory_budget_bytes > 0 ? std::min(options_.memory_budget_bytes, gpu_.free_bytes)
                                                    : std::max<int64_t>(0, gpu_.free_bytes - std::min(kReserveBytes, gpu_.free_bytes / 8));
  m.weights_bytes = weights_.n_bytes();
  m.workspace_bytes = forward_.workspace_bytes() + sampler_.workspace_bytes();
  m.page_bytes = kv_.page_bytes();
  return m;
}

Status GpuBackend::load(const ModelWeights& weights) {
  CUDA_OK(cudaSetDevice(gpu_.index));
  CUDA_OK(cudaStreamCreateWithFlags(stream_.put(), cudaStreamNonBlocking));
  for (CudaEvent* event : {&step_done_, &ordered_}) CUDA_OK(cudaEventCreateWithFlags(event->put(), cudaEventDisableTiming));
  CHECK_OK(weights_.upload(weights, options_.n_threads, options_.on_progress));
  CHECK_OK(forward_.allocate(stream_.get()));
  CHECK_OK(sampler_.allocate(stream_.get()));
  const size_t rows = static_cast<size_t>(forward_.max_rows()), stride = static_cast<size_t>(forward_.table_stride());
  for (Upload& u : uploads_) {
    u.offset = pinned_.add((4 * rows + config_.kv_groups.size() * rows * stride) * sizeof(int32_t));
    if (takes_hidden()) u.hidden_offset = pinned_.add(tiled::packed_bytes(GgmlType::kF32, forward_.max_rows(), config_.hidden_dim));
    CUDA_OK(cudaEventCreateWithFlags(u.done.put(), cudaEventDisableTiming));
  }
  host_logits_at_ = pinned_.add(static_cast<size_t>(forward_.max_logit_rows()) * static_cast<size_t>(config_.vocab_size) * sizeof(float));
  CHECK_OK(pinned_.allocate());
  tables_.assign(config_.kv_groups.size(), std::vector<PageId>(rows * stride, -1));
  return ok_status();
}

Status GpuBackend::reserve_tiers(const std::vector<int>& n_pages, const std::vector<int>& n_swap_pages) {
  std::vector<int> all = n_pages;
  for (size_t g = 0; g < all.size() && g < n_swap_pages.size(); ++g) all[g] += n_swap_pages[g];
  CHECK_OK(kv_.reserve(all, n_swap_pages));
  return choose_paths();
}

Result<float> GpuBackend::time_step(WeightSet set, int n_rows, DotPath path, cudaEvent_t begin, cudaEvent_t end) {
  forward_.set_path(set, n_rows, path);
  float ms = 0;
  for (int round = 0; round < 2; ++round) {  // the first one loads code
    CUDA_OK(cudaEventRecord(begin, stream_.get()));
    CHECK_OK(forward_.enqueue({n_rows, std::min(n_rows, forward_.max_logit_rows()), 1, false, set}, stream_.get()));
    CUDA_OK(cudaEventRecord(end, stream_.get()));
    CUDA_OK(cudaEventSynchronize(end));
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
  }
  return ms;
}

// Few rows are bound by memory whatever computes; for more, a step of padding is timed on both paths, whose bits are equal, with
// each set that is there: what there is to compute of a weight differs.
Status GpuBackend::choose_paths() {
  constexpr int kFewRows = 4;
  const size_t rows = static_cast<size_t>(forward_.max_rows());
  CUDA_OK(cudaMemsetAsync(forward_.inputs().tokens, 0xff, 2 * rows * sizeof(int32_t), stream_.get()));
  CUDA_OK(cudaMemsetAsync(forward_.inputs().table_of, 0, 2 * rows * sizeof(int32_t), stream_.get()));
  CudaEvent begin, end;
  CUDA_OK(cudaEventCreate(begin.put()));
  CUDA_OK(cudaEventCreate(end.put()));
  for (const WeightSet set : {WeightSet::kFull, WeightSet::kLean}) {
    if (!options_.measures_paths || (set == WeightSet::kLean && !limits_.has_lean_set)) break;
    for (int M = 2 * kFewRows; M <= forward_.max_rows(); M *= 2) {
      CHECK_ASSIGN(const float dp4a, time_step(set, M, DotPath::kDp4a, begin.get(), end.get()));
      CHECK_ASSIGN(const float mma, time_step(set, M, DotPath::kMma, begin.get(), end.get()));
      forward_.set_path(set, M, mma < dp4a ? DotPath::kMma : DotPath::kDp4a);
    }
  }
  CUDA_OK(cudaStreamSynchronize(stream_.get()));
  return ok_status();
}

Status GpuBackend::forward(const StepBatch& batch) {
  n_logit_rows_ = 0;
  are_logits_kept_ = false;
  const bool is_guess_right = is_guessed(batch);
  has_guess_ = false;
  has_unseen_work_ = true;
  if (!is_guess_right) {
    CHECK_OK(check_step(batch, config_, limits_));
    const bool is_decode = batch.logit_rows.size() == batch.tokens.size() && batch.items.size() == batch.tokens.size() &&
                           static_cast<int>(batch.tokens.size()) <= forward_.max_logit_rows();
    is_decode_ = is_decode;
    if (is_decode) CHECK_OK(run_decode(batch));
    else CHECK_OK(run_slices(batch));
  }
  n_rows_ = static_cast<int>(batch.tokens.size());
  n_logit_rows_ = static_cast<int>(batch.logit_rows.size());
  set_ = batch.weights;
  positions_.clear();
  for (const StepItem& item : batch.items) positions_.push_back(item.first_pos);
  return ok_status();
}

// --- uploads ---

Status GpuBackend::next_upload() {
  upload_ = (upload_ + 1) % kUploadSlots;
  Upload& u = uploads_[upload_];
  if (u.is_used) CUDA_OK(cudaEventSynchronize(u.done.get()));
  u.is_used = true;
  return ok_status();
}

Status GpuBackend::send_inputs(int n_rows, const int32_t* tokens, const int32_t* positions, const int32_t* table_of,
                               const int32_t* logit_rows, int n_logit_rows) {
  const size_t rows = static_cast<size_t>(forward_.max_rows()), n = static_cast<size_t>(n_rows);
  int32_t* to = pinned_.at<int32_t>(uploads_[upload_].offset);
  std::copy_n(tokens, n, to);
  std::copy_n(positions, n, to + rows);
  if (table_of != nullptr) {
    std::copy_n(table_of, n, to + 2 * rows);
    std::copy_n(logit_rows, static_cast<size_t>(n_logit_rows), to + 3 * rows);
  }
  const size_t n_ints = table_of != nullptr ? 4 * rows : rows + n;
  CUDA_OK(cudaMemcpyAsync(forward_.inputs().tokens, to, n_ints * sizeof(int32_t), cudaMemcpyHostToDevice, stream_.get()));
  CUDA_OK(cudaEventRecord(uploads_[upload_].done.get(), stream_.get()));
  return ok_status();
}

// Row `row` of the device's tables becomes the item's; only what differs goes over.
Status GpuBackend::send_table(int row, const StepItem& item, int last_pos) {
  const size_t stride = static_cast<size_t>(forward_.table_stride()), rows = static_cast<size_t>(forward_.max_rows());
  const int n = last_pos / options_.page_size + 1;
  for (size_t g = 0; g < tables_.size(); ++g) {
    const PageId* from = item.page_tables[g];
    PageId* known = tables_[g].data() + static_cast<size_t>(row) * stride;
    int first = 0, last = n;
    while (first < n && from[first] == known[first]) ++first;
    while (last > first && from[last - 1] == known[last - 1]) --last;
    CHECK_OK(kv_.wait_for(static_cast<int>(g), from, n, stream_.get()));
    if (first == last) continue;
    const size_t at = static_cast<size_t>(row) * stride + static_cast<size_t>(first), count = static_cast<size_t>(last - first);
    std::copy_n(from + first, count, known + first);
    int32_t* staged = pinned_.at<int32_t>(uploads_[upload_].offset) + 4 * rows + g * rows * stride + at;
    std::copy_n(from + first, count, staged);
    CUDA_OK(cudaMemcpyAsync(forward_.page_tables(static_cast<int>(g)) + at, staged, count * sizeof(int32_t), cudaMemcpyHostToDevice, stream_.get()));
  }
  return ok_status();
}

// The rows become the first layer's table, and each token its row of it.
Status GpuBackend::send_hidden(const float* rows, int n_rows, std::vector<int32_t>* tokens) {
  uint8_t* staged = pinned_.at(uploads_[upload_].hidden_offset);
  const int64_t n_tiles = (n_rows + kTileRows - 1) / kTileRows;
  tiled::pack_tiles(GgmlType::kF32, reinterpret_cast<const uint8_t*>(rows), n_rows, config_.hidden_dim, 0, n_tiles, staged);
  CUDA_OK(cudaMemcpyAsync(forward_.inputs().hidden, staged, tiled::packed_bytes(GgmlType::kF32, n_rows, config_.hidden_dim),
                          cudaMemcpyHostToDevice, stream_.get()));
  for (int m = 0; m < n_rows; ++m) (*tokens)[static_cast<size_t>(m)] = m;
  return ok_status();
}

// --- steps ---

Status GpuBackend::launch(const StepShape& shape) {
  if (options_.uses_graphs && shape.is_decode)
    return graphs_.launch(shape, stream_.get(), [&] { return forward_.enqueue(shape, stream_.get()); });
  return forward_.enqueue(shape, stream_.get());
}

Status GpuBackend::run_decode(const StepBatch& batch) {
  CHECK_OK(next_upload());
  const int M = static_cast<int>(batch.items.size()), bucket = std::min(round_up_power(M), forward_.max_logit_rows());
  std::vector<int32_t> tokens(static_cast<size_t>(bucket), -1), positions(static_cast<size_t>(bucket), -1);
  int last = 0;
  for (int m = 0; m < M; ++m) {
    const StepItem& item = batch.items[static_cast<size_t>(m)];
    tokens[static_cast<size_t>(m)] = batch.tokens[static_cast<size_t>(m)];
    positions[static_cast<size_t>(m)] = item.first_pos;
    last = std::max(last, item.first_pos);
    CHECK_OK(send_table(m, item, item.first_pos));
  }
  n_table_rows_ = M;
  if (takes_hidden()) CHECK_OK(send_hidden(batch.hidden, M, &tokens));
  CHECK_OK(send_inputs(bucket, tokens.data(), positions.data(), nullptr, nullptr, 0));
  return launch({bucket, bucket, round_up_power(parts_of(last)), true, batch.weights});
}

Status GpuBackend::run_slices(const StepBatch& batch) {
  logits_.resize(batch.logit_rows.size() * static_cast<size_t>(config_.vocab_size));
  size_t next_logit = 0;
  const int n = static_cast<int>(batch.tokens.size());
  for (int row = 0; row < n;) {
    // As many rows as fit, and no more logits than there is room for.
    int count = std::min(forward_.max_rows(), n - row);
    size_t end = next_logit;
    while (end < batch.logit_rows.size() && batch.logit_rows[end] < row + count) {
      if (static_cast<int>(end - next_logit) == forward_.max_logit_rows()) {
        count = batch.logit_rows[end] - row;
        break;
      }
      ++end;
    }
    CHECK_OK(run_slice(batch, row, count, &next_logit));
    row += count;
  }
  are_logits_kept_ = true;
  return ok_status();
}

Status GpuBackend::run_slice(const StepBatch& batch, int first_row, int n_rows, size_t* next_logit) {
  CHECK_OK(next_upload());
  std::vector<int32_t> positions, table_of, logit_rows;
  int table = 0, last = 0;
  for (const StepItem& item : batch.items) {
    const int begin = std::max(item.first_token, first_row), end = std::min(item.first_token + item.n_tokens, first_row + n_rows);
    if (begin >= end) continue;
    const int last_pos = item.first_pos + (end - 1 - item.first_token);
    CHECK_OK(send_table(table, item, last_pos));
    for (int row = begin; row < end; ++row) {
      positions.push_back(item.first_pos + row - item.first_token);
      table_of.push_back(table);
    }
    last = std::max(last, last_pos);
    ++table;
  }
  n_table_rows_ = table;
  const size_t first_logit = *next_logit;
  while (*next_logit < batch.logit_rows.size() && batch.logit_rows[*next_logit] < first_row + n_rows)
    logit_rows.push_back(batch.logit_rows[(*next_logit)++] - first_row);
  const int n_logits = static_cast<int>(logit_rows.size());
  std::vector<int32_t> tokens(batch.tokens.begin() + first_row, batch.tokens.begin() + first_row + n_rows);
  if (takes_hidden()) CHECK_OK(send_hidden(batch.hidden + int64_t{first_row} * config_.hidden_dim, n_rows, &tokens));
  CHECK_OK(send_inputs(n_rows, tokens.data(), positions.data(), table_of.data(), logit_rows.data(), n_logits));
  CHECK_OK(launch({n_rows, n_logits, round_up_power(parts_of(last)), false, batch.weights}));
  return n_logits > 0 ? keep_logits(static_cast<int>(first_logit), n_logits) : ok_status();
}

// Logits of the last launch go to the host; it has seen all work then.
Status GpuBackend::keep_logits(int first, int n) {
  const size_t vocab = static_cast<size_t>(config_.vocab_size), count = static_cast<size_t>(n) * vocab;
  float* host = pinned_.at<float>(host_logits_at_);
  CUDA_OK(cudaMemcpyAsync(host, forward_.logits(), count * sizeof(float), cudaMemcpyDeviceToHost, stream_.get()));
  CUDA_OK(cudaStreamSynchronize(stream_.get()));
  has_unseen_work_ = false;
  logits_.resize(std::max(logits_.size(), static_cast<size_t>(first) * vocab + count));
  std::copy_n(host, count, logits_.data() + static_cast<size_t>(first) * vocab);
  return ok_status();
}

std::span<const float> GpuBackend::logits(int i) {
  CHECK_MSG(i >= 0 && i < n_logit_rows_ && !has_guess_, "no such logit row in the last forward");
  if (!are_logits_kept_) {
    const Status status = keep_logits(0, n_logit_rows_);
    CHECK_MSG(status.ok(), status.message().c_str());
    are_logits_kept_ = true;
  }
  return {logits_.data() + static_cast<size_t>(i) * static_cast<size_t>(config_.vocab_size), static_cast<size_t>(config_.vocab_size)};
}

// --- drawing, and running ahead ---

// Every row's next position lies in a page that it has, and in the parts that the graph is for.
bool GpuBackend::may_run_ahead() const {
  if (!options_.runs_ahead || !is_decode_ || takes_hidden()) return false;  // there, another backend needs the tokens first
  for (int pos : positions_) {
    if ((pos + 1) % options_.page_size == 0 || pos + 1 >= options_.context_tokens) return false;
  }
  return true;
}

bool GpuBackend::is_guessed(const StepBatch& batch) const {
  if (!has_guess_ || batch.weights != set_ || batch.items.size() != positions_.size() || batch.tokens != guessed_tokens_ || batch.logit_rows.size() != batch.tokens.size()) return false;
  const size_t stride = static_cast<size_t>(forward_.table_stride());
  for (size_t m = 0; m < positions_.size(); ++m) {
    const StepItem& item = batch.items[m];
    if (item.n_tokens != 1 || item.first_pos != positions_[m] + 1 || item.first_token != static_cast<int>(m) || item.page_tables.size() != tables_.size()) return false;
    for (size_t g = 0; g < tables_.size(); ++g) {
      const int window = config_.kv_groups[g].window;
      const int first_key = window > 0 ? std::max(0, item.first_pos - window + 1) : 0;
      for (int i = first_key / options_.page_size; i <= item.first_pos / options_.page_size; ++i) {
        if (item.page_tables[g][i] != tables_[g][m * stride + static_cast<size_t>(i)]) return false;
      }
    }
  }
  return true;
}

Status GpuBackend::sample(std::span<const SampleRequest> requests, std::span<SampleResult> results) {
  CHECK(requests.size() == results.size());
  if (!is_decode_ || !sampler_.serves(requests, n_logit_rows_)) {
    if (!are_logits_kept_) {
      CHECK_OK(keep_logits(0, n_logit_rows_));
      are_logits_kept_ = true;
    }
    const auto log_sum_exp = kernel_table_ref().log_sum_exp;
    for (size_t i = 0; i < requests.size(); ++i) sample_row(logits(requests[i].logit_row), requests[i], log_sum_exp, &scratch_, &results[i]);
    return ok_status();
  }
  const bool runs_ahead = may_run_ahead();
  CHECK_OK(sampler_.enqueue(requests, forward_.logits(), forward_.inputs().positions, forward_.inputs().tokens, runs_ahead, stream_.get()));
  CUDA_OK(cudaEventRecord(step_done_.get(), stream_.get()));
  if (runs_ahead) {
    int last = 0;
    for (int pos : positions_) last = std::max(last, pos + 1);
    const int bucket = std::min(round_up_power(static_cast<int>(positions_.size())), forward_.max_logit_rows());
    CHECK_OK(launch({bucket, bucket, round_up_power(parts_of(last)), true, set_}));
  }
  CUDA_OK(cudaEventSynchronize(step_done_.get()));
  has_unseen_work_ = false;  // but for the guess
  sampler_.read(results);
  if (runs_ahead) {
    guessed_tokens_.clear();
    for (const SampleResult& r : results) guessed_tokens_.push_back(r.token);
    has_guess_ = true;
  }
  return ok_status();
}

// --- pages ---

Status GpuBackend::copy_pages(std::span<const PageCopy> copies) {
  has_unseen_work_ = true;
  return kv_.copy(copies, stream_.get());
}

bool GpuBackend::is_in_tables(int group, PageId page) const {
  const std::vector<PageId>& table = tables_[static_cast<size_t>(group)];
  const auto end = table.begin() + static_cast<std::ptrdiff_t>(n_table_rows_) * forward_.table_stride();
  return std::find(table.begin(), end, page) != end;
}

Status GpuBackend::import_page(int group, PageId to, const std::function<Status(uint8_t*)>& fill) {
  // Nothing that runs uses a page that was free, except a step or copy the host has not seen the end of.
  const bool must_wait = has_unseen_work_ || (has_guess_ && group >= 0 && group < static_cast<int>(tables_.size()) && is_in_tables(group, to));
  if (must_wait) CUDA_OK(cudaEventRecord(ordered_.get(), stream_.get()));
  return kv_.import(group, to, fill, must_wait ? ordered_.get() : nullptr);
}

Status check_options(const ModelConfig& config, const GpuOptions& o) {
  if (o.page_size != 16 && o.page_size != 32) return invalid_argument(fmt::format("cache.page_size_tokens must be 16 or 32, got {}", o.page_size));
  if (o.kv_type == KvType::kF32) return invalid_argument("cache.element_type on a device must be f16 or q8_0");
  if (o.first_layer < 0 || o.first_layer >= config.n_layers) return invalid_argument(fmt::format("first layer of the device must be 0 to {}, got {}", config.n_layers - 1, o.first_layer));
  if (o.max_batch_size < 1 || o.context_tokens < 1) return invalid_argument("batch size and context must be at least 1");
  return ok_status();
}

// What options may say only of a whole model.
GpuOptions options_in_force(GpuOptions options, const ModelWeights& weights) {
  options.has_lean_set = options.has_lean_set && is_mostly_q8_0(weights);
  return options;
}

Status check_fits(const GpuMemory& m) {
  int64_t least = 0;
  for (int64_t bytes : m.page_bytes) least += 2 * bytes;
  const int64_t needed = m.weights_bytes + m.workspace_bytes + least;
  if (needed <= m.budget_bytes) return ok_status();
  return exhausted(fmt::format("device memory: {} weights + {} workspace + at least {} K/V = {}, more than the {} there are: raise "
                               "gpu.memory_budget_bytes if it is set, free the card, or take a smaller model",
                               mib(m.weights_bytes), mib(m.workspace_bytes), mib(least), mib(needed), mib(m.budget_bytes)));
}

}  // namespace

Result<GpuMemory> plan_gpu_memory(const ModelConfig& config, const ModelWeights& weights, const GpuFacts& gpu, const GpuOptions& options) {
  CHECK_OK(check_options(config, options));
  GpuBackend backend(stage_config(config, options.first_layer, config.n_layers), gpu, options_in_force(options, weights));
  const ModelWeights stage = stage_weights(weights, options.first_layer, config.n_layers);
  CHECK_OK(backend.plan(stage));
  CHECK_OK(check_fits(backend.memory()));
  return backend.memory();
}

Result<std::unique_ptr<Backend>> create_gpu_backend(const ModelConfig& config, const ModelWeights& weights, const GpuFacts& gpu, GpuOptions options) {
  CHECK_OK(check_options(config, options));
  const ModelWeights stage = stage_weights(weights, options.first_layer, config.n_layers);
  auto backend = std::make_unique<GpuBackend>(stage_config(config, options.first_layer, config.n_layers), gpu,
                                              options_in_force(std::move(options), weights));
  CHECK_OK(backend->plan(stage));
  CHECK_OK(check_fits(backend->memory()));
  CHECK_OK(backend->load(stage));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace tandem
