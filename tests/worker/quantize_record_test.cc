// What an interrupted run leaves behind the file's last byte: read by the same plan alone, and by nobody once a byte of it is wrong.
#include "worker/quantize_record.h"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "worker/output_file.h"

using namespace tandem;

namespace {

constexpr int64_t kSlots = 8192, kWeights = kSlots + 2 * 4096;  // behind 5000 bytes

// Two tensors, of 3 and 5 rows; the second one has column weights.
struct Work {
  GgufTensor tensors[2];
  ColumnWeights weights;
  QuantizePlan plan;
  UniqueFd fd{memfd_create("output", MFD_CLOEXEC)};

  Work() {
    plan.header = "what is to be made";
    plan.file_bytes = 5000;
    weights.columns[&tensors[1]] = {1, 2, 3.5f, 4};
    plan.n_weighted = 1;
    for (int i = 0; i < 2; ++i) {
      TensorPlan t;
      t.source = &tensors[i];
      t.n_rows = i == 0 ? 3 : 5;
      t.row_values = 4, t.row_bytes = 10, t.padding = 2;
      t.n_bytes = t.n_rows * t.row_bytes;
      if (i == 1) t.column_weights = weights.columns[&tensors[1]].data();
      plan.tensors.push_back(t);
    }
  }
  Work(const Work&) = delete;
  std::vector<float>& columns() { return weights.columns[&tensors[1]]; }
  // As another process would.
  std::optional<QuantizeProgress> read() {
    columns().assign(4, 0);
    return QuantizeRecord(fd.get(), plan).read(&weights);
  }
  void flip(int64_t at) {
    std::string byte = *read_output(fd.get(), at, 1);
    byte[0] ^= 0x10;
    REQUIRE(pwrite(fd.get(), byte.data(), 1, at) == 1);
  }
};

}  // namespace

TEST_CASE("a record is read as it was written, with the column weights") {
  Work w;
  CHECK(!w.read());
  w.columns() = {1, 2, 3.5f, 4};
  QuantizeRecord record(w.fd.get(), w.plan);
  CHECK(record.room_bytes() == kWeights + 16);
  REQUIRE(record.write_weights().ok());
  auto found = w.read();
  REQUIRE(found);
  CHECK(found->tensor == 0);
  CHECK(found->row == 0);
  CHECK(w.columns() == std::vector<float>{1, 2, 3.5f, 4});
  const QuantizeTotals totals{1.0 / 3, 2e-300, 3, 4, 5};
  for (const int64_t row : {1, 2, 3, 4}) REQUIRE(record.write({1, row, totals}).ok());
  found = w.read();
  REQUIRE(found);
  CHECK(found->tensor == 1);
  CHECK(found->row == 4);
  CHECK(found->totals.squares == totals.squares);
  CHECK(found->totals.error_squares == totals.error_squares);
  CHECK(found->totals.weighted_squares == 3);
  CHECK(found->totals.weighted_error_squares == 4);
  CHECK(found->totals.unimproved_error_squares == 5);
  CHECK(w.columns() == std::vector<float>{1, 2, 3.5f, 4});
  CHECK(place_of(w.plan, {0, 0, {}}) == 20);
  CHECK(place_of(w.plan, *found) == 20 + 30 + 2 + 40);
  CHECK(place_of(w.plan, {2, 0, {}}) == 20 + 30 + 2 + 50);
}

TEST_CASE("a run that goes on writes newer records") {
  Work w;
  QuantizeRecord first(w.fd.get(), w.plan);
  REQUIRE(first.write_weights().ok());
  REQUIRE(first.write({0, 1, {}}).ok());
  QuantizeRecord second(w.fd.get(), w.plan);
  REQUIRE(second.read(&w.weights));
  REQUIRE(second.write({1, 2, {}}).ok());
  CHECK(w.read()->row == 2);
}

TEST_CASE("of a torn record the one before holds, of two torn ones nothing") {
  for (const int64_t byte : {0, 9, 17, 25, 33, 70, 100, 140, 263}) {
    INFO("byte " << byte);
    Work w;
    QuantizeRecord record(w.fd.get(), w.plan);
    REQUIRE(record.write_weights().ok());  // number 1, second slot
    REQUIRE(record.write({1, 3, {}}).ok());  // number 2, first slot
    w.flip(kSlots + byte);
    const auto older = w.read();
    REQUIRE(older);
    CHECK(older->tensor == 0);
    w.flip(kSlots + 4096 + byte);
    CHECK(!w.read());
    REQUIRE(cut_output(w.fd.get(), 5000).ok());
    CHECK(!w.read());
  }
}

TEST_CASE("a record of other work, or whose column weights are damaged or missing, is none") {
  Work w;
  QuantizeRecord record(w.fd.get(), w.plan);
  REQUIRE(record.write({0, 1, {}}).ok());  // as of a run without them
  CHECK(!w.read());
  REQUIRE(record.write_weights().ok());
  REQUIRE(w.read());
  w.plan.header += "!";
  CHECK(!w.read());
  w.plan.header.pop_back();
  REQUIRE(w.read());
  w.plan.tensors[0].n_rows = 1;  // a row that is not there: only a record of ours that is wrong says so
  REQUIRE(record.write({0, 2, {}}).ok());
  CHECK(w.read()->row == 0);  // the older one
  w.flip(kWeights + 5);
  CHECK(!w.read());
}
