// Sizes as messages about memory say them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace tandem {

// "105.3 MiB"
inline std::string mib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / 1048576.0);
  return text;
}

}  // namespace tandem
