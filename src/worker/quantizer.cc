#include "worker/quantizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "gguf/gguf_parser.h"
#include "worker/output_file.h"

namespace tandem {

namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;  // computed together, then written
constexpr int64_t kGrainValues = 16384;            // of rows that one thread takes at a time
// What an interruption costs, whichever comes first; more on a disk that takes longer for it.
constexpr int64_t kNoteBytes = int64_t{64} << 20, kNoteUs = 1'000'000;

Status check_row(const GgufModel& model, const TensorPlan& plan, int64_t row, const RowOutcome& outcome) {
  if (outcome.bad_value >= 0) {
    return data_loss(fmt::format("{}: tensor \"{}\", row {}: value {} is no finite number; the file is damaged: fetch it again",
                                 model.name(), printable(plan.source->name), row, outcome.bad_value));
  }
  if (outcome.is_too_large) {
    return invalid_argument(fmt::format("{}: tensor \"{}\", row {}: has values too large for the scales of {} (65504); use --to "
                                        "bf16 or f32",
                                        model.name(), printable(plan.source->name), row, quant_traits(static_cast<uint32_t>(plan.type))->name));
  }
  return {};
}

}  // namespace

Quantizer::Quantizer(const GgufModel& model, const QuantizePlan& plan, QuantizeRecord* record, int fd, int n_threads)
    : model_(model), plan_(plan), record_(record), fd_(fd), team_(n_threads), scratch_(static_cast<size_t>(n_threads)),
      progress_("quantizing", plan.file_bytes, 1 << 20, "MiB") {}

Result<QuantizeTotals> Quantizer::run(const QuantizeProgress& from) {
  const Status rows = add_tensors(from);
  const Status noted = noting_.valid() ? noting_.get() : ok_status();
  CHECK_OK(rows);
  CHECK_OK(noted);
  CHECK_OK(record_->write({static_cast<int64_t>(plan_.tensors.size()), 0, totals_}));
  return totals_;
}

Status Quantizer::add_tensors(const QuantizeProgress& from) {
  totals_ = from.totals;
  noted_us_ = monotonic_us();
  CHECK_OK(write_output(fd_, 0, plan_.header.data(), plan_.header.size()));
  for (int64_t i = from.tensor; i < static_cast<int64_t>(plan_.tensors.size()); ++i) {
    CHECK_OK(add_tensor(i, i == from.tensor ? from.row : 0));
  }
  progress_.at(plan_.file_bytes);
  return {};
}

Status Quantizer::add_tensor(int64_t index, int64_t first_row) {
  const TensorPlan& tensor = plan_.tensors[static_cast<size_t>(index)];
  const int64_t begin = place_of(plan_, {index, 0, {}});  // what is padded before it reads as zeros already
  const int64_t piece_rows = std::max<int64_t>(1, kPieceBytes / tensor.row_bytes);
  for (int64_t row = first_row; row < tensor.n_rows; row += piece_rows) {
    const int64_t n = std::min(piece_rows, tensor.n_rows - row);
    CHECK_OK(add_rows(tensor, row, n, begin + row * tensor.row_bytes));
    const bool is_end = row + n == tensor.n_rows;
    CHECK_OK(note({is_end ? index + 1 : index, is_end ? 0 : row + n, totals_}));
  }
  // What was read of the source and written is not needed in memory again.
  model_.release_pages(tensor.source->data, tensor.source->n_bytes);
  return {};
}

Status Quantizer::add_rows(const TensorPlan& tensor, int64_t first, int64_t n, int64_t at) {
  piece_.resize(static_cast<size_t>(n * tensor.row_bytes));
  outcomes_.assign(static_cast<size_t>(n), {});
  const int64_t grain = std::max<int64_t>(1, kGrainValues / tensor.row_values);
  team_.run([&](TeamMember& member) {
    auto* scratch = &scratch_[static_cast<size_t>(member.index())];
    member.share(n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        outcomes_[static_cast<size_t>(i)] = requantize_row(tensor, first + i, scratch, piece_.data() + i * tensor.row_bytes);
      }
    });
  });
  CHECK_OK(add_up(tensor, first));
  CHECK_OK(write_output(fd_, at, piece_.data(), piece_.size()));
  unnoted_bytes_ += static_cast<int64_t>(piece_.size());
  progress_.at(at + static_cast<int64_t>(piece_.size()));
  return {};
}

// In order, so that the sums too are the same for any number of threads.
Status Quantizer::add_up(const TensorPlan& tensor, int64_t first) {
  for (size_t i = 0; i < outcomes_.size(); ++i) {
    const RowOutcome& outcome = outcomes_[i];
    CHECK_OK(check_row(model_, tensor, first + static_cast<int64_t>(i), outcome));
    if (tensor.type == GgmlType::kF32) continue;
    totals_.squares += outcome.squares;
    totals_.error_squares += outcome.error_squares;
    totals_.weighted_squares += outcome.weighted_squares;
    totals_.weighted_error_squares += outcome.weighted_error_squares;
    totals_.unimproved_error_squares += outcome.unimproved_error_squares;
  }
  return {};
}

Status Quantizer::note(const QuantizeProgress& progress) {
  if (unnoted_bytes_ < kNoteBytes && monotonic_us() - noted_us_ < kNoteUs) return {};
  if (noting_.valid()) {
    if (noting_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return {};
    CHECK_OK(noting_.get());
  }
  // Not here, where the team would wait for the disk: 512 MB of F16 took 1.6 s instead of 1.3 (2 cores, virtual disk).
  noting_ = std::async(std::launch::async, [this, progress] { return record_->write(progress); });
  unnoted_bytes_ = 0;
  noted_us_ = monotonic_us();
  return {};
}

}  // namespace tandem
