// tandem quantize: a model's weights in another type, written tensor by tensor. Every row is computed alone, so the file is the same for
// any number of threads. What a text says about columns is calibration.h's.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "cpu/omp_team.h"
#include "gguf/gguf_parser.h"
#include "quantize/requantize_row.h"
#include "worker/calibration.h"
#include "worker/output_file.h"
#include "worker/tool_args.h"
#include "worker/tool_model.h"
#include "worker/tool_progress.h"

namespace tandem {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPieceBytes = int64_t{8} << 20;  // computed together, then written
constexpr int64_t kGrainValues = 16384;            // of rows that one thread takes at a time

const char* type_name(GgmlType type) { return quant_traits(static_cast<uint32_t>(type))->name; }

struct Totals {
  double squares = 0, error_squares = 0;  // of the tensors that were quantized
  // Of those whose columns have weights, as RowOutcome.
  double weighted_squares = 0, weighted_error_squares = 0, unimproved_error_squares = 0;
};

Status check_row(const GgufModel& model, const TensorPlan& plan, int64_t row, const RowOutcome& outcome) {
  if (outcome.bad_value >= 0) {
    return data_loss(fmt::format("{}: tensor \"{}\", row {}: value {} is no finite number; the file is damaged: fetch it again",
                                 model.name(), printable(plan.source->name), row, outcome.bad_value));
  }
  if (outcome.is_too_large) {
    return invalid_argument(fmt::format("{}: tensor \"{}\", row {}: has values too large for the scales of {} (65504); use --to "
                                        "bf16 or f32",
                                        model.name(), printable(plan.source->name), row, type_name(plan.type)));
  }
  return {};
}

// Confined to the tool's thread, which the team's threads join for each piece.
class Quantizer {
 public:
  Quantizer(const GgufModel& model, const QuantizePlan& plan, int fd, int n_threads)
      : model_(model), plan_(plan), fd_(fd), team_(n_threads), scratch_(static_cast<size_t>(n_threads)),
        progress_("quantizing", plan.file_bytes, 1 << 20, "MiB") {}

  Result<Totals> run() {
    CHECK_OK(write(plan_.header.data(), plan_.header.size()));
    for (const TensorPlan& tensor : plan_.tensors) {
      const std::string zeros(static_cast<size_t>(tensor.padding), '\0');
      CHECK_OK(write(zeros.data(), zeros.size()));
      const int64_t piece_rows = std::max<int64_t>(1, kPieceBytes / tensor.row_bytes);
      for (int64_t row = 0; row < tensor.n_rows; row += piece_rows) {
        CHECK_OK(add_rows(tensor, row, std::min(piece_rows, tensor.n_rows - row)));
      }
      // What was read of the source and written is not needed in memory again.
      model_.release_pages(tensor.source->data, tensor.source->n_bytes);
    }
    return totals_;
  }

 private:
  Status write(const void* data, size_t n_bytes) {
    CHECK_OK(write_output(fd_, data, n_bytes));
    written_ += static_cast<int64_t>(n_bytes);
    progress_.at(written_);
    return {};
  }

  Status add_rows(const TensorPlan& tensor, int64_t first, int64_t n) {
    piece_.resize(static_cast<size_t>(n * tensor.row_bytes));
    outcomes_.assign(static_cast<size_t>(n), {});
    const int64_t grain = std::max<int64_t>(1, kGrainValues / tensor.row_values);
    team_.run([&](TeamMember& member) {
      auto* scratch = &scratch_[static_cast<size_t>(member.index())];
      member.share(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          outcomes_[static_cast<size_t>(i)] =
              requantize_row(tensor, first + i, scratch, piece_.data() + i * tensor.row_bytes);
        }
      });
    });
    for (int64_t i = 0; i < n; ++i) {  // in order, so that the sums too are the same for any number of threads
      const RowOutcome& outcome = outcomes_[static_cast<size_t>(i)];
      CHECK_OK(check_row(model_, tensor, first + i, outcome));
      if (tensor.type == GgmlType::kF32) continue;
      totals_.squares += outcome.squares;
      totals_.error_squares += outcome.error_squares;
      totals_.weighted_squares += outcome.weighted_squares;
      totals_.weighted_error_squares += outcome.weighted_error_squares;
      totals_.unimproved_error_squares += outcome.unimproved_error_squares;
    }
    return write(piece_.data(), piece_.size());
  }

  const GgufModel& model_;
  const QuantizePlan& plan_;
  int fd_;
  OmpTeam team_;
  std::vector<std::vector<float>> scratch_;
  ToolProgress progress_;
  std::vector<uint8_t> piece_;
  std::vector<RowOutcome> outcomes_;
  int64_t written_ = 0;
  Totals totals_;
};

double ratio_of_roots(double a, double b) { return b > 0 ? std::sqrt(a / b) : 0.0; }

Json describe_calibration(const QuantizePlan& plan, const ColumnWeights& weights, const Totals& totals) {
  const auto is_unweighted = [](const TensorPlan& t) {
    return t.quantize_row != nullptr && t.type != GgmlType::kF32 && t.column_weights == nullptr;
  };
  return {{"text", weights.text_name},
          {"sha256", weights.text_sha256},
          {"tokens", weights.n_tokens},
          {"windows", weights.n_windows},
          {"weighted_tensors", plan.n_weighted},
          {"unweighted_tensors", std::count_if(plan.tensors.begin(), plan.tensors.end(), is_unweighted)},
          {"weighted_error", ratio_of_roots(totals.weighted_error_squares, totals.weighted_squares)},
          {"weighted_error_without", ratio_of_roots(totals.unimproved_error_squares, totals.weighted_squares)}};
}

Json describe(const QuantizePlan& plan, const QuantizeTarget& target, const Totals& totals, double seconds) {
  std::map<std::string, int64_t> types, stand_ins;
  int64_t weight_bits = 0, n_weights = 0;
  for (const TensorPlan& t : plan.tensors) {
    ++types[type_name(t.type)];
    if (t.is_stand_in) ++stand_ins[fmt::format("rows of {} as {}", t.row_values, type_name(t.type))];
    if (t.source->n_dims < 2) continue;
    weight_bits += 8 * t.n_bytes;
    n_weights += t.n_rows * t.row_values;
  }
  return {{"type", type_name(target.type)},
          {"bytes", plan.file_bytes},
          {"bits_per_weight", static_cast<double>(weight_bits) / static_cast<double>(n_weights)},
          {"tensors_by_type", types},
          {"stand_ins", stand_ins},
          {"relative_error", ratio_of_roots(totals.error_squares, totals.squares)},
          {"seconds", seconds}};
}

void print_calibration(const Json& d) {
  std::printf("  calibrated with %lld tokens of %s: %lld tensors, whose relative error as its columns count is %.5f, without it %.5f\n",
              d["tokens"].get<long long>(), d["text"].get<std::string>().c_str(), d["weighted_tensors"].get<long long>(),
              d["weighted_error"].get<double>(), d["weighted_error_without"].get<double>());
  if (const auto n = d["unweighted_tensors"].get<long long>(); n > 0) {
    std::printf("  %lld tensors as without a calibration: rows that are looked up, or a type that takes no weights\n", n);
  }
}

void print(const Json& d, const QuantizeTarget& target) {
  std::printf("%s, %.1f MiB, %.2f bits a weight, relative error %.5f (rms of the change over rms of the weights), %.1f s\n",
              d["type"].get<std::string>().c_str(), d["bytes"].get<double>() / 1048576, d["bits_per_weight"].get<double>(),
              d["relative_error"].get<double>(), d["seconds"].get<double>());
  for (const auto& [type, n] : d["tensors_by_type"].items()) {
    std::printf("  %-8s %6lld tensors\n", type.c_str(), n.get<long long>());
  }
  const int block = quant_traits(static_cast<uint32_t>(target.type))->block_size;
  for (const auto& [what, n] : d["stand_ins"].items()) {
    std::printf("  %lld tensors have %s: no multiple of %d\n", n.get<long long>(), what.c_str(), block);
  }
  if (d.contains("calibration")) print_calibration(d["calibration"]);
}

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
               model.name().c_str(), type_name(most->first));
}

}  // namespace

Result<int> tool_quantize(const ToolContext& context) {
  const ToolArgs& args = context.args;
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write() like any other
  const std::string option = args.text("--to", "");
  const QuantizeTarget* target = find_quantize_target(option);
  if (target == nullptr) {
    return invalid_argument(fmt::format("--to must be one of {}, got \"{}\"", quantize_target_options(), option));
  }
  if (args.out_fd < 0) return invalid_argument("--out-fd is needed");
  const bool is_calibrated = args.values.count("--calibration") > 0;
  if (is_calibrated && target->improve_row == nullptr) {
    return invalid_argument(fmt::format("--calibration: {} is so near to the original that columns need no weights; allowed with --to {}; "
                                        "leave --calibration out",
                                        target->option, quantize_target_options(true)));
  }
  CHECK_ASSIGN(const int64_t threads, args.number("--threads", 0, 0, 1024));
  CHECK_ASSIGN(const auto model, open_tool_model(args));
  std::unique_ptr<Calibration> calibration;
  if (is_calibrated) {
    CHECK_ASSIGN(calibration, Calibration::create(context, *model));
  }
  CHECK_ASSIGN(const QuantizePlan plan, plan_quantize(*model, *target, calibration ? &calibration->weights() : nullptr));
  CHECK_OK(reserve_output(args.out_fd, plan.file_bytes));
  warn_of_loss(*model);
  const int64_t start_us = monotonic_us();
  if (calibration) CHECK_OK(calibration->run(context));
  Quantizer quantizer(*model, plan, args.out_fd, threads > 0 ? static_cast<int>(threads) : context.cpu.n_usable_cores);
  CHECK_ASSIGN(const Totals totals, quantizer.run());
  // Read back by the rules that hold for foreign files.
  std::vector<GgufFile> written;
  written.push_back({UniqueFd(args.out_fd), "the output"});
  if (const auto check = GgufModel::open(std::move(written)); !check.ok()) return internal_error(check.status().message());
  Json description = describe(plan, *target, totals, static_cast<double>(monotonic_us() - start_us) / 1e6);
  if (calibration) description["calibration"] = describe_calibration(plan, calibration->weights(), totals);
  if (args.has("--json")) {
    std::puts(description.dump().c_str());
  } else {
    print(description, *target);
  }
  return 0;
}

}  // namespace tandem
