// Types, places and header of a requantized file, read back by the reader that reads foreign ones.
#include "quantize/quantize_plan.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "../gguf/gguf_writer.h"
#include "kernels/quant_blocks.h"
#include "quantize/requantize_row.h"

using namespace tandem;
using tandem::testing::GgufWriter;

namespace {

std::string floats(size_t n, float first = 0.25f) {
  std::string bytes;
  for (size_t i = 0; i < n; ++i) GgufWriter::put<float>(&bytes, first + static_cast<float>(i % 7));
  return bytes;
}

std::unique_ptr<GgufModel> parse(const std::string& bytes) {
  auto model = GgufModel::parse(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "m.gguf");
  INFO(model.status().message());
  REQUIRE(model.ok());
  return std::move(model).value();
}

const std::string kSource(64, '5');

const QuantizeTarget& target_of(const char* option) { return *find_quantize_target(option); }

// The whole file as the tool writes it.
std::string write(const QuantizePlan& plan) {
  std::string out = plan.header;
  std::vector<float> scratch;
  for (const TensorPlan& t : plan.tensors) {
    out.append(static_cast<size_t>(t.padding), '\0');
    std::string row(static_cast<size_t>(t.row_bytes), '\0');
    for (int64_t r = 0; r < t.n_rows; ++r) {
      const RowOutcome outcome = requantize_row(t, r, &scratch, reinterpret_cast<uint8_t*>(row.data()));
      CHECK(outcome.bad_value == -1);
      out += row;
    }
  }
  return out;
}

GgufWriter small_model() {
  GgufWriter w;
  w.text("general.architecture", "llama").u32("general.file_type", 1).u64("x.u64", ~uint64_t{0}).number<int8_t>("x.i8", 1, -3);
  w.number<int64_t>("x.i64", 11, -(int64_t{1} << 60)).f32("x.f32", 0.1f).number<double>("x.f64", 12, 0.1).boolean("x.yes", true);
  w.texts("x.texts", {"", "a b", "\xc3\xa9"}).numbers<float>("x.floats", 6, {1.5f, -2.5f}).numbers<int32_t>("x.none", 5, {});
  w.u32("split.count", 1).u32("split.no", 0).u32("split.tensors.count", 7);
  w.tensor({"token_embd.weight", {512, 3}, 0, floats(512 * 3)});
  w.tensor({"blk.0.attn_q.weight", {288, 2}, 0, floats(288 * 2)});
  w.tensor({"blk.0.ffn_up.weight", {40, 2}, 0, floats(80)});
  w.tensor({"blk.0.attn_norm.weight", {512}, 0, floats(512)});
  w.tensor({"blk.0.ffn_gate_inp.weight", {256, 4}, 0, floats(1024)});
  w.tensor({"blk.0.ffn_up_exps.weight", {256, 2, 3}, 0, floats(1536)});
  w.tensor({"blk.0.ids", {4, 2}, 26, std::string(32, '\x01')});
  return w;
}

}  // namespace

TEST_CASE("metadata is kept, file type and version are set, split keys are left out") {
  const std::string bytes = small_model().bytes();
  const auto model = parse(bytes);
  const auto plan = plan_quantize(*model, target_of("q8_0"), kSource);
  REQUIRE(plan.ok());
  const std::string out = write(*plan);
  REQUIRE(static_cast<int64_t>(out.size()) == plan->file_bytes);
  const auto read = parse(out);
  CHECK(read->version() == 3);
  CHECK(*read->get_int("general.file_type") == 7);
  CHECK(*read->get_int("general.quantization_version") == 2);
  CHECK(*read->get_string("tandem.quantize.source_sha256") == kSource);
  CHECK(*read->get_int("tandem.quantize.version") == kQuantizeVersion);
  CHECK(read->find("split.count") == nullptr);
  CHECK(read->find("split.tensors.count") == nullptr);
  for (const char* key : {"x.u64", "x.i8", "x.i64", "x.f32", "x.f64", "x.yes", "general.architecture"}) {
    INFO(key);
    REQUIRE(read->find(key) != nullptr);
    CHECK(read->find(key)->type == model->find(key)->type);
  }
  CHECK(std::get<uint64_t>(read->find("x.u64")->value) == ~uint64_t{0});
  CHECK(*read->get_int("x.i8") == -3);
  CHECK(*read->get_int("x.i64") == -(int64_t{1} << 60));
  CHECK(*read->get_float("x.f32") == static_cast<double>(0.1f));
  CHECK(*read->get_float("x.f64") == 0.1);
  CHECK(*read->get_bool("x.yes"));
  const GgufArray* texts = *read->get_array("x.texts");
  CHECK(texts->strings == std::vector<std::string_view>{"", "a b", "\xc3\xa9"});
  CHECK((*read->get_array("x.floats"))->number(1) == -2.5);
  CHECK((*read->get_array("x.none"))->count == 0);
}

TEST_CASE("headers are the same for the same work alone, and what an earlier run said of its own is replaced") {
  const std::string bytes = small_model().bytes();
  const auto model = parse(bytes);
  const auto header = [&](const GgufModel& of, const char* option, const std::string& source, const ColumnWeights* weights = nullptr) {
    return plan_quantize(of, target_of(option), source, weights)->header;
  };
  const std::string once = header(*model, "q4_k", kSource);
  CHECK(header(*model, "q4_k", kSource) == once);
  CHECK(header(*model, "q5_k", kSource) != once);
  CHECK(header(*model, "q4_k", std::string(64, '6')) != once);
  ColumnWeights weights;
  weights.text_name = "manual.txt";
  weights.text_sha256 = std::string(64, 'a');
  weights.n_tokens = 4096;
  weights.columns[model->find_tensor("blk.0.attn_q.weight")].resize(288);
  const std::string calibrated = header(*model, "q4_k", kSource, &weights);
  CHECK(calibrated != once);
  weights.columns.begin()->second[3] = 7;  // what is computed makes no difference, what it is computed of does
  CHECK(header(*model, "q4_k", kSource, &weights) == calibrated);
  weights.n_tokens = 4095;
  CHECK(header(*model, "q4_k", kSource, &weights) != calibrated);

  const std::string first = write(*plan_quantize(*model, target_of("q8_0"), kSource));
  const auto second = parse(first);
  const std::string other(64, '7'), again = write(*plan_quantize(*second, target_of("q4_0"), other));
  const auto read = parse(again);
  CHECK(*read->get_string("tandem.quantize.source_sha256") == other);
  CHECK(read->metadata().size() == second->metadata().size());
}

TEST_CASE("which tensor becomes what") {
  const std::string bytes = small_model().bytes();
  const auto model = parse(bytes);
  const auto plan = plan_quantize(*model, target_of("q4_k"), kSource);
  REQUIRE(plan.ok());
  const std::string out = write(*plan);
  const auto read = parse(out);
  const auto type = [&](const char* name) { return read->find_tensor(name)->type; };
  CHECK(type("token_embd.weight") == GgmlType::kQ4_K);
  CHECK(type("blk.0.attn_q.weight") == GgmlType::kQ5_0);  // 288 is a multiple of 32
  CHECK(type("blk.0.ffn_up.weight") == GgmlType::kF16);   // 40 is not
  CHECK(type("blk.0.attn_norm.weight") == GgmlType::kF32);
  CHECK(type("blk.0.ffn_gate_inp.weight") == GgmlType::kF32);
  CHECK(type("blk.0.ffn_up_exps.weight") == GgmlType::kQ4_K);
  CHECK(type("blk.0.ids") == GgmlType::kI32);
  std::vector<std::string> stand_ins;
  for (const TensorPlan& t : plan->tensors) {
    if (t.is_stand_in) stand_ins.push_back(t.source->name);
  }
  CHECK(stand_ins == std::vector<std::string>{"blk.0.attn_q.weight", "blk.0.ffn_up.weight"});
  CHECK(std::memcmp(read->find_tensor("blk.0.ids")->data, model->find_tensor("blk.0.ids")->data, 32) == 0);
  CHECK(std::memcmp(read->find_tensor("blk.0.attn_norm.weight")->data, model->find_tensor("blk.0.attn_norm.weight")->data, 2048) == 0);
  for (const auto& t : model->tensors()) {
    for (int d = 0; d < 4; ++d) CHECK(read->find_tensor(t.name)->dims[d] == t.dims[d]);
  }
}

TEST_CASE("weights of columns: which tensors take them, what is improved, and what the metadata says") {
  GgufWriter w = small_model();
  w.text("quantize.imatrix.file", "old.dat").u32("quantize.imatrix.chunks_count", 99).text("quantize.imatrix.dataset", "old.txt");
  const std::string bytes = w.bytes();
  const auto model = parse(bytes);
  ColumnWeights weights;
  weights.text_name = "manual.txt";
  weights.text_sha256 = std::string(64, 'a');
  weights.n_tokens = 4096;
  weights.n_windows = 9;
  const auto weigh = [&](const char* name, size_t n) {
    std::vector<float>& columns = weights.columns[model->find_tensor(name)];
    for (size_t i = 0; i < n; ++i) columns.push_back(i % 7 == 3 ? 50.0f : 0.1f);
  };
  weigh("blk.0.attn_q.weight", 288);
  weigh("blk.0.ffn_up.weight", 40);  // becomes F16, which takes none
  const auto plan = plan_quantize(*model, target_of("q4_k"), kSource, &weights);
  REQUIRE(plan.ok());
  CHECK(plan->n_weighted == 1);
  std::vector<float> scratch;
  for (const TensorPlan& t : plan->tensors) {
    INFO(t.source->name);
    CHECK((t.column_weights != nullptr) == (t.source->name == "blk.0.attn_q.weight"));
    CHECK((t.improve_row != nullptr) == (t.column_weights != nullptr));
    std::vector<uint8_t> row(static_cast<size_t>(t.row_bytes));
    const RowOutcome outcome = requantize_row(t, 0, &scratch, row.data());
    CHECK((outcome.weighted_squares > 0) == (t.column_weights != nullptr));
    if (t.column_weights == nullptr) continue;
    CHECK(outcome.weighted_error_squares < outcome.unimproved_error_squares);
    CHECK(outcome.unimproved_error_squares < outcome.weighted_squares);
  }
  const std::string out = write(*plan);
  REQUIRE(static_cast<int64_t>(out.size()) == plan->file_bytes);
  const auto read = parse(out);
  CHECK(*read->get_string("quantize.imatrix.dataset") == "manual.txt");
  CHECK(*read->get_int("quantize.imatrix.entries_count") == 1);
  CHECK(*read->get_int("quantize.imatrix.chunks_count") == 9);
  CHECK(*read->get_int("tandem.calibration.tokens") == 4096);
  CHECK(*read->get_string("tandem.calibration.sha256") == std::string(64, 'a'));
  CHECK(read->find("quantize.imatrix.file") == nullptr);  // of the old one
  // Without a calibration the model's own keys stay as they are.
  const std::string plain = write(*plan_quantize(*model, target_of("q4_k"), kSource));
  const auto plain_read = parse(plain);
  CHECK(*plain_read->get_string("quantize.imatrix.file") == "old.dat");
  CHECK(plain_read->find("tandem.calibration.tokens") == nullptr);

  for (const char* option : {"q8_0", "f16"}) {
    const auto none = plan_quantize(*model, target_of(option), kSource, &weights);
    REQUIRE(!none.ok());
    CHECK(none.status().message().find("a calibration would change nothing") != std::string::npos);
  }
}

TEST_CASE("a model's own alignment is kept") {
  GgufWriter w;
  w.alignment = 128;
  w.u32("general.alignment", 128).tensor({"a", {32, 1}, 0, floats(32)}).tensor({"b", {32, 1}, 0, floats(32)});
  const std::string bytes = w.bytes();
  const auto model = parse(bytes);
  const auto plan = plan_quantize(*model, target_of("q8_0"), kSource);
  REQUIRE(plan.ok());
  CHECK(plan->header.size() % 128 == 0);
  CHECK(plan->tensors[1].padding == 128 - 34);
  CHECK(plan->file_bytes == static_cast<int64_t>(plan->header.size()) + 128 + 34);
}

TEST_CASE("a tensor that has the type already is copied") {
  const std::string q8(34 * 2, '\x11');
  GgufWriter w;
  w.tensor({"a", {64, 1}, 8, q8});
  const std::string bytes = w.bytes();
  const auto model = parse(bytes);
  const auto plan = plan_quantize(*model, target_of("Q8_0"), kSource);
  REQUIRE(plan.ok());
  CHECK(plan->tensors[0].quantize_row == nullptr);
  CHECK(write(*plan).substr(plan->header.size()) == q8);
}

TEST_CASE("what cannot be quantized is said") {
  const std::string norms = GgufWriter().tensor({"a.norm", {32}, 0, floats(32)}).bytes();
  const auto none = plan_quantize(*parse(norms), target_of("q8_0"), kSource);
  REQUIRE(!none.ok());
  CHECK(none.status().message().find("m.gguf: has no tensor") == 0);
  const std::string doubles = GgufWriter().tensor({"a", {32, 1}, 28, std::string(256, '\0')}).bytes();
  const auto f64 = plan_quantize(*parse(doubles), target_of("q8_0"), kSource);
  REQUIRE(!f64.ok());
  CHECK(f64.status().code() == StatusCode::kUnimplemented);
  CHECK(f64.status().message().find("F64") != std::string::npos);
  CHECK(find_quantize_target("q2_k") == nullptr);
  CHECK(find_quantize_target("") == nullptr);
  CHECK(quantize_target_options() == "q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, f16, bf16, f32");
}

TEST_CASE("a row with no number, or one too large for the type, is found") {
  const auto outcome_of = [](float value, const char* option) {
    std::string data = floats(64);
    std::memcpy(data.data() + 40 * 4, &value, 4);
    const std::string bytes = GgufWriter().tensor({"a", {32, 2}, 0, data}).bytes();
    const auto model = parse(bytes);
    const auto plan = plan_quantize(*model, target_of(option), kSource);
    REQUIRE(plan.ok());
    std::vector<float> scratch;
    std::vector<uint8_t> out(static_cast<size_t>(plan->tensors[0].row_bytes));
    CHECK(requantize_row(plan->tensors[0], 0, &scratch, out.data()).bad_value == -1);
    return requantize_row(plan->tensors[0], 1, &scratch, out.data());
  };
  CHECK(outcome_of(NAN, "q8_0").bad_value == 8);
  CHECK(outcome_of(INFINITY, "q4_0").bad_value == 8);
  CHECK(outcome_of(1e9f, "q8_0").is_too_large);
  CHECK(outcome_of(70000.0f, "f16").is_too_large);
  CHECK(!outcome_of(70000.0f, "q8_0").is_too_large);
  CHECK(!outcome_of(1e9f, "bf16").is_too_large);
  const RowOutcome good = outcome_of(5.0f, "f16");  // all values are halves
  CHECK(good.squares > 0);
  CHECK(good.error_squares == 0);
}
