// What a requantized model will be, before a weight is read: each tensor's type and place, the file's
// header and size. Immutable after plan_quantize.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_reader.h"
#include "quantize/quantize_target.h"

namespace tandem {

// Of the code that makes the bytes. Goes up by one with every change by which some model comes out as other bytes: quantizers and their
// searches, the ways back to floats in kernels/, the rules of plan_quantize, what a calibration weighs. Files of an earlier
// number are then neither taken for made already nor gone on with.
constexpr uint32_t kQuantizeVersion = 1;

// How much the columns of matrices count, from what a text gives them to multiply with. Where the numbers come from is not known
// here (worker/calibration.h).
struct ColumnWeights {
  std::string text_name, text_sha256;  // for the file's metadata; UTF-8
  int64_t n_tokens = 0, n_windows = 0;
  // Of a tensor of the model, a weight for each value of a row: >= 0, finite. Those of other tensors count alike.
  std::map<const GgufTensor*, std::vector<float>> columns;
};

struct TensorPlan {
  const GgufTensor* source = nullptr;  // in the model
  GgmlType type = GgmlType::kF32;      // to be written in
  // Bytes are copied as they are (type is the source's), else each row goes through floats.
  void (*quantize_row)(const float* x, int64_t n, uint8_t* blocks) = nullptr;
  // Columns count differently: what quantize_row wrote is improved with these. Both or neither.
  void (*improve_row)(const float* x, const float* weight, int64_t n, uint8_t* blocks) = nullptr;
  const float* column_weights = nullptr;  // [row_values]
  bool is_stand_in = false;  // the wanted type's blocks do not divide this row
  int64_t n_rows = 0, row_values = 0;
  int64_t source_row_bytes = 0, row_bytes = 0;
  int64_t n_bytes = 0;   // n_rows * row_bytes
  int64_t padding = 0;   // zero bytes before the data
};

struct QuantizePlan {
  std::vector<TensorPlan> tensors;  // in the order of the file
  std::string header;  // everything before the first tensor's padding; two plans with the same one make the same bytes
  int64_t file_bytes = 0;
  int64_t n_weighted = 0;  // tensors with column_weights
};

// Every tensor of two or more dimensions becomes `target` (its stand-in where a row does not divide into its blocks), but
// norms and the routers of mixtures (*norm*, ffn_gate_inp) and all of one dimension stay or become F32; integers are copied.
// Metadata is the model's own, with general.file_type and general.quantization_version set and split.* left out; tandem.quantize.* says
// of which model (source_sha256: 64 hex digits, of the bytes of its files) and by which kQuantizeVersion, and nothing of earlier ones.
// weights: null, or for the tensors that take a type with improve_row; the metadata then says so by the keys other tools use
// (quantize.imatrix.*), with the text's hash and tokens. Their numbers are first read by requantize_row.
// kInvalidArgument: nothing in it to quantize, or none of it with the weights. kUnimplemented: a tensor's type that can only be stored.
// `model` and `weights` must outlive the plan.
Result<QuantizePlan> plan_quantize(const GgufModel& model, const QuantizeTarget& target, std::string_view source_sha256,
                                   const ColumnWeights* weights = nullptr);

}  // namespace tandem
