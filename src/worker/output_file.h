// The file a tool writes: a descriptor that the parent opened, whose room is taken before the first byte.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace tandem {

// Takes `n_bytes` on the file's disk. kExhausted says how many are needed and how many are free. A file system that cannot
// promise room (NFS, FAT) is only asked how much is free.
Status reserve_output(int fd, int64_t n_bytes);
// Appends; kExhausted when the disk is full all the same.
Status write_output(int fd, const void* data, size_t n_bytes);

}  // namespace tandem
