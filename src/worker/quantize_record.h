// How far a run of tandem quantize has come, kept behind the last byte of the file under way, so that the next run goes on there.
//
// DESIGN. A record is written only when all it claims lasts (fdatasync), and in turn into two places: the power may tear the newer one,
// the older one then holds. It names the header of the file it belongs to, and with it model, type, calibration and code
// (QuantizePlan::header). Behind the two, what a calibration computed: that can take longer than all the rest, and another
// processor would compute it otherwise in the last digits. At the end all of it is cut off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "quantize/quantize_plan.h"

namespace tandem {

// Sums over rows, in the order of the file, of the tensors that were quantized.
struct QuantizeTotals {
  double squares = 0, error_squares = 0;
  // Of those whose columns have weights, as RowOutcome.
  double weighted_squares = 0, weighted_error_squares = 0, unimproved_error_squares = 0;
};

// The first row that is not in the file yet; tensor == plan.tensors.size(): all are.
struct QuantizeProgress {
  int64_t tensor = 0, row = 0;
  QuantizeTotals totals;  // of the rows before
};

// Byte of the file where that row begins.
int64_t place_of(const QuantizePlan& plan, const QuantizeProgress& progress);

// Confined to one thread. `plan` must outlive it.
class QuantizeRecord {
 public:
  QuantizeRecord(int fd, const QuantizePlan& plan);
  // Of the file with its records: the room it needs.
  int64_t room_bytes() const { return weights_at_ + weights_bytes_; }
  // What an earlier run of the same plan left, its column weights put into `weights` (null: the plan has none). None where it is of
  // another plan, damaged or not there.
  std::optional<QuantizeProgress> read(ColumnWeights* weights);
  // The column weights of the plan as they are now, and that no row is done.
  Status write_weights();
  Status write(const QuantizeProgress& progress);

 private:
  struct Slot;
  std::optional<Slot> read_slot(int number) const;
  bool read_weights(const Slot& slot, ColumnWeights* weights) const;

  const int fd_;
  const QuantizePlan& plan_;
  const std::string header_sha256_;
  std::string weights_sha256_;  // empty: none written
  int64_t slots_at_ = 0, weights_at_ = 0, weights_bytes_ = 0;
  uint64_t n_written_ = 0;
};

}  // namespace tandem
