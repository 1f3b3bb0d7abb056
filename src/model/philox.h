// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). Pure: the same counter and key always give the same four words, so a draw
// needs no state that a restart could lose.
#pragma once

#include <array>
#include <cstdint>

namespace tandem {

std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace tandem
