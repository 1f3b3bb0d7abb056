// Messages to bytes and back: little-endian, lengths before contents, alternative index first. decode
// refuses short, long, unknown and oversized input (fuzzed); it never allocates more than the input's size
// justifies.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "ipc/messages.h"

namespace tandem::ipc {

std::string encode(const ToWorker& message);
std::string encode(const FromWorker& message);
Result<ToWorker> decode_to_worker(std::span<const uint8_t> bytes);
Result<FromWorker> decode_from_worker(std::span<const uint8_t> bytes);

}  // namespace tandem::ipc
