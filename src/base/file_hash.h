// SHA-256 of files, and a memory of it: a model of gigabytes is hashed once per state of its files.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

// 64 hex digits, of all files one after another. Reads from offset 0 and leaves no pages behind in the file cache: on a
// small box they would push out those that serve. `stop` (may be null) ends it early with kCancelled; `on_read` (may be empty) hears
// how many bytes were read so far. Thread-safe.
Result<std::string> sha256_of_files(const std::vector<int>& fds, const std::atomic<bool>* stop = nullptr,
                                    const std::function<void(int64_t)>& on_read = {});
std::string sha256_of_text(std::string_view text);

// The memory: a text file, a line each of stamp, blank, digest, the newest first. Several processes may use one: it is
// replaced in one step, the last one wins; one that cannot be read or written only costs the work again.
// `stamp` (file_stamp() of each part with ';' behind it) names the state of the files. Empty where it is not known.
std::string find_sha256(const std::string& memory_path, const std::string& stamp);
void remember_sha256(const std::string& memory_path, const std::string& stamp, const std::string& digest);

}  // namespace tandem
