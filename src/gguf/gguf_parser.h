// Bytes of one GGUF file -> metadata and tensors, everything checked. Mapping, split sets and
// look-ups are gguf_reader's; this file sees one range of memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "gguf/gguf_reader.h"

namespace tandem {

struct ParsedGguf {
  uint32_t version = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata;  // views point into the bytes
  std::vector<GgufTensor> tensors;                          // in file order
  size_t data_offset = 0;                                   // where tensor data begins
};

// `name` goes into messages. Errors: kInvalidArgument (not GGUF, a field out of range), kDataLoss
// (truncated), kUnimplemented (a tensor type or version that is known but not served).
Result<ParsedGguf> parse_gguf(const uint8_t* data, size_t size, const std::string& name);

// Foreign text for a message: printable ASCII, others as \xNN, at most 64 bytes of it.
std::string printable(std::string_view text);

const char* gguf_type_name(GgufValueType type);  // "uint32", "array"
// Bytes of one number or bool; 0 for strings, arrays and unknown types.
size_t gguf_type_bytes(GgufValueType type);

}  // namespace tandem
