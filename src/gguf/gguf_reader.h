// Bounds-checked view of a GGUF model: version 2 and 3, one file or a split set. Reads foreign bytes: every
// count, size, offset, type and string is checked before use with overflow-safe arithmetic; an error names
// file, field, found and allowed. Maps the files read-only. Immutable after open; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "kernels/quant_traits.h"

namespace tandem {

enum class GgufValueType : uint32_t {
  kU8 = 0, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64,
};

struct GgufArray {
  GgufValueType element_type = GgufValueType::kU8;
  uint64_t count = 0;
  const uint8_t* data = nullptr;             // numbers: packed little-endian elements in the mapping
  std::vector<std::string_view> strings;     // element_type kString
  double number(uint64_t i) const;           // element i of a numeric or bool array
  int64_t integer(uint64_t i) const;
};

struct GgufValue {
  GgufValueType type = GgufValueType::kU8;
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  int n_dims = 0;
  int64_t dims[4] = {1, 1, 1, 1};  // GGUF order: dims[0] is the fastest (K), dims[1] = N
  const uint8_t* data = nullptr;   // in the mapping; n_bytes are there
  size_t n_bytes = 0;
};

struct GgufFile {
  UniqueFd fd;
  std::string name;  // for messages
};

class GgufModel {
 public:
  // Opens descriptors that somebody else opened (the worker never opens a path): part 1..N in order. A
  // single file has one. Errors: kInvalidArgument / kDataLoss with a message; never throws, never crashes.
  static Result<std::unique_ptr<GgufModel>> open(std::vector<GgufFile> files);
  // Paths of all parts of `path` by the name rule "-00001-of-0000N.gguf"; {path} for a single file.
  static Result<std::vector<std::string>> split_paths(const std::string& path);
  // Parses bytes in memory (fuzzing, tests). The bytes must outlive the model.
  static Result<std::unique_ptr<GgufModel>> parse(const uint8_t* data, size_t size, std::string name);
  ~GgufModel();

  const GgufValue* find(std::string_view key) const;
  // Typed look-ups; kNotFound when absent, kInvalidArgument when of another kind. Integer kinds convert.
  Result<int64_t> get_int(std::string_view key) const;
  Result<double> get_float(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string> get_string(std::string_view key) const;
  Result<const GgufArray*> get_array(std::string_view key) const;
  const std::vector<std::pair<std::string, GgufValue>>& metadata() const;
  const GgufTensor* find_tensor(std::string_view name) const;
  const std::vector<GgufTensor>& tensors() const;
  const std::string& name() const;  // first file's name
  uint32_t version() const;
  // Tells the kernel that the file's pages are not needed any more (after repacking): all of them, or those that
  // lie wholly in [data, data + n_bytes) where that is in the file. They come back when they are read again.
  void release_pages() const;
  void release_pages(const uint8_t* data, size_t n_bytes) const;

 private:
  GgufModel();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
