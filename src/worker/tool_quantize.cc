// tandem quantize: a model's weights in another type. Here are the steps and their order: what is to be made (plan), whether it is there
// already, where an earlier run left it, what a text says about columns (calibration.h), the rows (quantizer.h).
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>

#include "base/clock.h"
#include "base/file_hash.h"
#include "worker/calibration.h"
#include "worker/output_file.h"
#include "worker/quantize_record.h"
#include "worker/quantize_report.h"
#include "worker/quantizer.h"
#include "worker/tool_args.h"
#include "worker/tool_model.h"
#include "worker/tool_progress.h"

namespace tandem {

namespace {

// A second loss on top of the first is easily overlooked.
void warn_of_loss(const GgufModel& model) {
  std::map<GgmlType, size_t> bytes;
  for (const GgufTensor& t : model.tensors()) {
    if (t.n_dims >= 2) bytes[t.type] += t.n_bytes;
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  if (quant_traits(static_cast<uint32_t>(most->first))->block_size == 1) return;
  std::fprintf(stderr,
               "tandem quantize: note: %s is quantized itself (mostly %s); what that lost stays lost, so a file made from the F16 or "
               "BF16 original is better where there is one\n",
               model.name().c_str(), quant_traits(static_cast<uint32_t>(most->first))->name);
}

Result<const QuantizeTarget*> read_target(const ToolArgs& args) {
  const std::string option = args.text("--to", "");
  const QuantizeTarget* target = find_quantize_target(option);
  if (target == nullptr) {
    return invalid_argument(fmt::format("--to must be one of {}, got \"{}\"", quantize_target_options(), option));
  }
  if (args.values.count("--calibration") > 0 && target->improve_row == nullptr) {
    return invalid_argument(fmt::format("--calibration: {} is so near to the original that columns need no weights; allowed with --to {}; "
                                        "leave --calibration out",
                                        target->option, quantize_target_options(true)));
  }
  return target;
}

// Whoever opens a model closes its descriptors.
Result<UniqueFd> duplicate_of(int fd) {
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return errno_status(errno, "cannot duplicate a descriptor");
  return copy;
}

Result<std::vector<UniqueFd>> duplicates_of(const std::vector<int>& fds) {
  std::vector<UniqueFd> copies;
  for (const int fd : fds) {
    CHECK_ASSIGN(UniqueFd copy, duplicate_of(fd));
    copies.push_back(std::move(copy));
  }
  return copies;
}

Result<std::string> hash_of(const std::vector<UniqueFd>& files) {
  std::vector<int> fds;
  int64_t total = 0;
  for (const UniqueFd& file : files) {
    CHECK_ASSIGN(const int64_t n_bytes, output_size(file.get()));
    total += n_bytes;
    fds.push_back(file.get());
  }
  ToolProgress progress("reading the model", total, 1 << 20, "MiB");
  return sha256_of_files(fds, nullptr, [&](int64_t n_read) { progress.at(std::min(n_read, total)); });
}

// The same header is the same work, and a file has its name only when it is whole.
Result<bool> is_made(int fd, const QuantizePlan& plan) {
  CHECK_ASSIGN(const int64_t n_bytes, output_size(fd));
  if (n_bytes != plan.file_bytes) return false;
  CHECK_ASSIGN(const std::string begin, read_output(fd, 0, plan.header.size()));
  return begin == plan.header;
}

// Read back by the rules that hold for foreign files.
Status check_output(int fd) {
  CHECK_ASSIGN(UniqueFd copy, duplicate_of(fd));
  std::vector<GgufFile> written;
  written.push_back({std::move(copy), "the output"});
  const auto check = GgufModel::open(std::move(written));
  return check.ok() ? ok_status() : internal_error(check.status().message());
}

void say_continued(const QuantizePlan& plan, const QuantizeProgress& from, bool is_calibrated) {
  std::fprintf(stderr, "tandem quantize: continuing at %lld %%, left by an earlier run%s\n",
               static_cast<long long>(place_of(plan, from) * 100 / plan.file_bytes), is_calibrated ? " with its calibration" : "");
}

// Where to begin; none: with nothing, and the file is empty.
Result<std::optional<QuantizeProgress>> find_begin(int fd, const QuantizePlan& plan, ColumnWeights* weights, QuantizeRecord* record) {
  CHECK_ASSIGN(const int64_t n_bytes, output_size(fd));
  const std::optional<QuantizeProgress> from = record->read(weights);
  if (from) {
    say_continued(plan, *from, weights != nullptr);
  } else if (n_bytes > 0) {
    std::fprintf(stderr, "tandem quantize: starting anew: what an earlier run left is of another model or other options, or has no sound "
                         "record of how far it came\n");
    CHECK_OK(cut_output(fd, 0));
  }
  return from;
}

// Errors that come again at the same row leave an empty file, which the parent removes; others leave what is done.
Status make(const ToolContext& context, const GgufModel& model, Calibration* calibration, QuantizeReport* report) {
  const int fd = context.args.out_fd;
  const QuantizePlan& plan = report->plan;
  QuantizeRecord record(fd, plan);
  CHECK_ASSIGN(const auto from, find_begin(fd, plan, calibration ? &calibration->weights() : nullptr, &record));
  CHECK_OK(reserve_output(fd, record.room_bytes()));
  warn_of_loss(model);
  if (calibration && !from) {
    CHECK_OK(calibration->run(context));
    CHECK_OK(record.write_weights());
  }
  if (from) report->resumed_bytes = place_of(plan, *from);
  CHECK_ASSIGN(const int64_t threads, context.args.number("--threads", 0, 0, 1024));
  Quantizer quantizer(model, plan, &record, fd, threads > 0 ? static_cast<int>(threads) : context.cpu.n_usable_cores);
  const auto totals = quantizer.run(from.value_or(QuantizeProgress{}));
  const StatusCode code = totals.status().code();
  if (code == StatusCode::kDataLoss || code == StatusCode::kInvalidArgument) (void)cut_output(fd, 0).ok();
  if (!totals.ok()) return totals.status();
  report->totals = *totals;
  CHECK_OK(cut_output(fd, plan.file_bytes));
  const Status check = check_output(fd);
  if (!check.ok()) (void)cut_output(fd, 0).ok();
  return check;
}

}  // namespace

Result<int> tool_quantize(const ToolContext& context) {
  const ToolArgs& args = context.args;
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write() like any other
  const int64_t start_us = monotonic_us();
  const std::string out_name = args.text("--out-name", "the output");
  CHECK_ASSIGN(const QuantizeTarget* target, read_target(args));
  CHECK_OK(args.number("--threads", 0, 0, 1024).status());
  if (args.out_fd < 0 && args.made_fd < 0) return invalid_argument("--out-fd or --made-fd is needed");
  CHECK_ASSIGN(const std::vector<UniqueFd> source, duplicates_of(args.model_fds));
  CHECK_ASSIGN(const auto model, open_tool_model(args));
  std::unique_ptr<Calibration> calibration;
  if (args.values.count("--calibration") > 0) {
    CHECK_ASSIGN(calibration, Calibration::create(context, *model));
  }
  const ColumnWeights* weights = calibration ? &calibration->weights() : nullptr;
  CHECK_ASSIGN(const std::string sha256, hash_of(source));
  CHECK_ASSIGN(const QuantizePlan plan, plan_quantize(*model, *target, sha256, weights));
  QuantizeReport report{plan, *target, weights, {}, 0, 0};
  if (args.made_fd >= 0) {
    CHECK_ASSIGN(const bool is_there, is_made(args.made_fd, plan));
    if (!is_there) {
      return Status(StatusCode::kFailedPrecondition, fmt::format("--out {} exists and is not what this command would make; name another "
                                                                 "file, or replace it with --force",
                                                                 out_name));
    }
  } else {
    CHECK_OK(make(context, *model, calibration.get(), &report));
  }
  report.seconds = static_cast<double>(monotonic_us() - start_us) / 1e6;
  if (args.has("--json")) {
    print_json(report);
  } else {
    print_text(report, out_name);
  }
  return 0;
}

}  // namespace tandem
