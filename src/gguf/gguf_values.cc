// Names and sizes of the metadata types, and elements of numeric arrays.
#include <cstring>

#include "base/check.h"
#include "gguf/gguf_parser.h"
#include "gguf/gguf_reader.h"

namespace tandem {
namespace {

struct TypeRow {
  const char* name;
  size_t bytes;
};
// By the ids of the GGUF specification, "gguf_metadata_value_type".
constexpr TypeRow kTypes[] = {
    {"uint8", 1},  {"int8", 1},    {"uint16", 2},  {"int16", 2},  {"uint32", 4},
    {"int32", 4},  {"float32", 4}, {"bool", 1},    {"string", 0}, {"array", 0},
    {"uint64", 8}, {"int64", 8},   {"float64", 8},
};

template <typename T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);  // elements are not aligned in the file
  return v;
}

}  // namespace

const char* gguf_type_name(GgufValueType type) {
  auto i = static_cast<size_t>(type);
  return i < std::size(kTypes) ? kTypes[i].name : "unknown";
}

size_t gguf_type_bytes(GgufValueType type) {
  auto i = static_cast<size_t>(type);
  return i < std::size(kTypes) ? kTypes[i].bytes : 0;
}

int64_t GgufArray::integer(uint64_t i) const {
  CHECK(i < count && data != nullptr);
  const uint8_t* p = data + i * gguf_type_bytes(element_type);
  switch (element_type) {
    case GgufValueType::kU8:
      return *p;
    case GgufValueType::kBool:
      return *p != 0;
    case GgufValueType::kI8:
      return load<int8_t>(p);
    case GgufValueType::kU16:
      return load<uint16_t>(p);
    case GgufValueType::kI16:
      return load<int16_t>(p);
    case GgufValueType::kU32:
      return load<uint32_t>(p);
    case GgufValueType::kI32:
      return load<int32_t>(p);
    case GgufValueType::kU64: {
      auto v =
          load<uint64_t>(p);  // saturates, so that a huge value stays out of every allowed range
      return v > static_cast<uint64_t>(INT64_MAX) ? INT64_MAX : static_cast<int64_t>(v);
    }
    case GgufValueType::kI64:
      return load<int64_t>(p);
    default:
      break;
  }
  double v = number(i);
  if (!(v > -9.2e18)) return INT64_MIN;  // NaN too
  return v < 9.2e18 ? static_cast<int64_t>(v) : INT64_MAX;
}

double GgufArray::number(uint64_t i) const {
  CHECK(i < count && data != nullptr);
  if (element_type == GgufValueType::kF32) return load<float>(data + i * 4);
  if (element_type == GgufValueType::kF64) return load<double>(data + i * 8);
  return static_cast<double>(integer(i));
}

}  // namespace tandem
