// Bytes of a GGUF header (version 3), written from what the reader gave.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf_reader.h"

namespace tandem {

struct HeaderTensor {
  const std::string* name;
  const GgufTensor* shape;  // n_dims, dims
  GgmlType type;
  uint64_t offset;  // from the end of the padded header
};

// Magic, counts, metadata and tensor table; not yet padded to the alignment.
std::string gguf_header(const std::vector<std::pair<std::string, GgufValue>>& metadata,
                        const std::vector<HeaderTensor>& tensors);

}  // namespace tandem
