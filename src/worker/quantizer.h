// The rows of a plan, computed by a team of threads and written piece by piece. Every row is computed alone, so the file is the same
// for any number of threads, and wherever a run goes on.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "cpu/omp_team.h"
#include "gguf/gguf_reader.h"
#include "quantize/requantize_row.h"
#include "worker/quantize_record.h"
#include "worker/tool_progress.h"

namespace tandem {

// Confined to the tool's thread, which the team's threads join for each piece; records are written by one more, which mostly waits for
// the disk.
class Quantizer {
 public:
  // All must outlive it; where nothing was written, the file `fd` reads as zeros.
  Quantizer(const GgufModel& model, const QuantizePlan& plan, QuantizeRecord* record, int fd, int n_threads);
  // The header, and every row from `from` on, with a record of what lasts about every second, and one of all at the end. kDataLoss,
  // kInvalidArgument: a value that cannot be written, by name. kExhausted: the disk is full.
  Result<QuantizeTotals> run(const QuantizeProgress& from);

 private:
  Status add_tensors(const QuantizeProgress& from);
  Status add_tensor(int64_t index, int64_t first_row);
  Status add_rows(const TensorPlan& tensor, int64_t first, int64_t n, int64_t at);
  Status add_up(const TensorPlan& tensor, int64_t first);
  Status note(const QuantizeProgress& progress);

  const GgufModel& model_;
  const QuantizePlan& plan_;
  QuantizeRecord* const record_;
  const int fd_;
  OmpTeam team_;
  std::vector<std::vector<float>> scratch_;
  ToolProgress progress_;
  std::vector<uint8_t> piece_;
  std::vector<RowOutcome> outcomes_;
  QuantizeTotals totals_;
  int64_t unnoted_bytes_ = 0, noted_us_ = 0;
  std::future<Status> noting_;  // the record's write under way, if valid; nobody else uses it then
};

}  // namespace tandem
