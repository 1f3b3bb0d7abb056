// The file a tool writes: a descriptor that the parent opened, whose room is taken before the first byte.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace tandem {

// Takes `n_bytes` on the file's disk; its size stays what it is. kExhausted says how many are needed and how many are free. A file system
// that cannot promise room (NFS, FAT) is only asked how much is free.
Status reserve_output(int fd, int64_t n_bytes);
// From byte `at` on; kExhausted when the disk is full all the same.
Status write_output(int fd, int64_t at, const void* data, size_t n_bytes);
// What was written lasts from here on, also when the power goes.
Status sync_output(int fd);
// The file ends there.
Status cut_output(int fd, int64_t n_bytes);
// As many from byte `at` on; fewer where the file ends.
Result<std::string> read_output(int fd, int64_t at, size_t n_bytes);
Result<int64_t> output_size(int fd);

}  // namespace tandem
