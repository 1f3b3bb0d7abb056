// What every fuzz target shares: properties that end the process when they do not hold, and the planted fault
// that proves that a run would report one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

// Not assert: must hold in every build, and the message is what a reader of the log gets.
#define FUZZ_REQUIRE(condition)                                                        \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      std::fprintf(stderr, "property does not hold: %s (%s:%d)\n", #condition, __FILE__, __LINE__); \
      std::abort();                                                                    \
    }                                                                                  \
  } while (false)

namespace tandem::fuzz {

inline std::string_view view(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// In a build with FUZZ_PLANT: reads one byte past a heap block when the input is the magic word.
inline void planted_fault([[maybe_unused]] const uint8_t* data, [[maybe_unused]] size_t size) {
#ifdef FUZZ_PLANT
  constexpr std::string_view kMagic = "TANDEM-PLANTED-FAULT";
  if (view(data, size) != kMagic) return;
  auto* copy = static_cast<volatile char*>(std::malloc(size));
  for (size_t i = 0; i < size; ++i) copy[i] = static_cast<char>(data[i]);
  std::fprintf(stderr, "%d\n", copy[size]);
  std::free(const_cast<char*>(copy));
#endif
}

}  // namespace tandem::fuzz
