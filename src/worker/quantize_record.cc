#include "worker/quantize_record.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "base/file_hash.h"
#include "worker/output_file.h"

namespace tandem {

namespace {

constexpr char kMagic[8] = {'t', 'd', 'm', 'q', 'u', 'a', 'n', '1'};  // the digit: of this layout
constexpr int64_t kSlotBytes = 4096;  // of the file; a disk writes no less, so that one slot's write never touches the other
constexpr size_t kHexDigits = 64;

int64_t round_up(int64_t value) { return (value + kSlotBytes - 1) / kSlotBytes * kSlotBytes; }

int64_t count_weights(const QuantizePlan& plan) {
  int64_t n = 0;
  for (const TensorPlan& t : plan.tensors) n += t.column_weights != nullptr ? t.row_values : 0;
  return n;
}

void set_digits(char* to, std::string_view hex) { std::copy_n(hex.data(), std::min(hex.size(), kHexDigits), to); }

bool is_row(const QuantizePlan& plan, int64_t tensor, int64_t row) {
  const auto n = static_cast<int64_t>(plan.tensors.size());
  if (tensor == n) return row == 0;
  return tensor >= 0 && tensor < n && row >= 0 && row < plan.tensors[static_cast<size_t>(tensor)].n_rows;
}

}  // namespace

struct QuantizeRecord::Slot {
  char magic[8] = {};
  uint64_t number = 0;  // the higher one is the newer
  int64_t tensor = 0, row = 0;
  QuantizeTotals totals;
  char header_sha256[kHexDigits] = {};
  char weights_sha256[kHexDigits] = {};  // zeros: there are none
  char sha256[kHexDigits] = {};          // of all before

  std::string digest() const { return sha256_of_text({reinterpret_cast<const char*>(this), offsetof(Slot, sha256)}); }
  std::string_view digits(const char (&of)[kHexDigits]) const { return {of, of[0] == '\0' ? 0 : kHexDigits}; }
};

int64_t place_of(const QuantizePlan& plan, const QuantizeProgress& progress) {
  auto at = static_cast<int64_t>(plan.header.size());
  for (size_t i = 0; i < static_cast<size_t>(progress.tensor); ++i) at += plan.tensors[i].padding + plan.tensors[i].n_bytes;
  if (progress.tensor == static_cast<int64_t>(plan.tensors.size())) return at;
  const TensorPlan& tensor = plan.tensors[static_cast<size_t>(progress.tensor)];
  return at + tensor.padding + progress.row * tensor.row_bytes;
}

QuantizeRecord::QuantizeRecord(int fd, const QuantizePlan& plan)
    : fd_(fd), plan_(plan), header_sha256_(sha256_of_text(plan.header)), slots_at_(round_up(plan.file_bytes)),
      weights_at_(slots_at_ + 2 * kSlotBytes), weights_bytes_(count_weights(plan) * static_cast<int64_t>(sizeof(float))) {
  static_assert(std::is_trivially_copyable_v<Slot>);
  static_assert(sizeof(Slot) == 4 * 8 + sizeof(QuantizeTotals) + 3 * kHexDigits, "no gaps whose bytes nobody sets");
}

std::optional<QuantizeRecord::Slot> QuantizeRecord::read_slot(int number) const {
  const auto bytes = read_output(fd_, slots_at_ + number * kSlotBytes, sizeof(Slot));
  if (!bytes.ok() || bytes->size() != sizeof(Slot)) return std::nullopt;
  Slot slot;
  std::memcpy(&slot, bytes->data(), sizeof slot);
  if (std::memcmp(slot.magic, kMagic, sizeof kMagic) != 0 || slot.digits(slot.sha256) != slot.digest() ||
      slot.digits(slot.header_sha256) != header_sha256_ || !is_row(plan_, slot.tensor, slot.row)) {
    return std::nullopt;
  }
  return slot;
}

bool QuantizeRecord::read_weights(const Slot& slot, ColumnWeights* weights) const {
  if (weights == nullptr) return true;
  const auto bytes = read_output(fd_, weights_at_, static_cast<size_t>(weights_bytes_));
  if (!bytes.ok() || sha256_of_text(*bytes) != slot.digits(slot.weights_sha256)) return false;
  const char* from = bytes->data();
  for (const TensorPlan& t : plan_.tensors) {
    if (t.column_weights == nullptr) continue;
    std::vector<float>& columns = weights->columns.at(t.source);
    const size_t n_bytes = columns.size() * sizeof(float);
    std::memcpy(columns.data(), from, n_bytes);
    from += n_bytes;
  }
  return true;
}

std::optional<QuantizeProgress> QuantizeRecord::read(ColumnWeights* weights) {
  std::optional<Slot> newest = read_slot(0);
  if (const auto other = read_slot(1); other && (!newest || other->number > newest->number)) newest = other;
  if (!newest || !read_weights(*newest, weights)) return std::nullopt;
  n_written_ = newest->number;
  weights_sha256_ = newest->digits(newest->weights_sha256);
  return QuantizeProgress{newest->tensor, newest->row, newest->totals};
}

Status QuantizeRecord::write_weights() {
  std::string bytes;
  for (const TensorPlan& t : plan_.tensors) {
    if (t.column_weights == nullptr) continue;
    bytes.append(reinterpret_cast<const char*>(t.column_weights), static_cast<size_t>(t.row_values) * sizeof(float));
  }
  CHECK_OK(write_output(fd_, weights_at_, bytes.data(), bytes.size()));
  weights_sha256_ = sha256_of_text(bytes);
  return write({});
}

Status QuantizeRecord::write(const QuantizeProgress& progress) {
  CHECK_OK(sync_output(fd_));
  Slot slot;
  std::copy_n(kMagic, sizeof kMagic, slot.magic);
  slot.number = ++n_written_;
  slot.tensor = progress.tensor;
  slot.row = progress.row;
  slot.totals = progress.totals;
  set_digits(slot.header_sha256, header_sha256_);
  set_digits(slot.weights_sha256, weights_sha256_);
  set_digits(slot.sha256, slot.digest());
  return write_output(fd_, slots_at_ + static_cast<int64_t>(n_written_ % 2) * kSlotBytes, &slot, sizeof slot);
}

}  // namespace tandem
