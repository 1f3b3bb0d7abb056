// Small files as a whole: configuration, lists, what the kernel shows in /sys and /proc. Errors of reading are errors,
// not an empty text (a folder, for one, opens as a stream and then reads as nothing). Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem {

constexpr size_t kSmallFileBytes = 16 << 20;

// All of it. "cannot read PATH: why", with the code of errno_status(); kInvalidArgument above kSmallFileBytes.
Result<std::string> read_file(const std::string& path);

// Its first line without the newline; none where there is no line to be read: for files of the kernel, which may be
// absent, and for notes of ours that may be lost.
std::optional<std::string> first_line(const std::string& path);

// All of `bytes` at the descriptor's place, or from byte `at` of the file. kExhausted when the disk is full; `path` is
// for the message.
Status write_all(int fd, std::string_view bytes, const std::string& path);
Status write_all_at(int fd, int64_t at, std::string_view bytes, const std::string& path);
// As these two: 0 or errno, for whoever has words of their own.
int try_write_all(int fd, std::string_view bytes);
int try_write_all_at(int fd, int64_t at, std::string_view bytes);

// Gives a file that is written through another name, written through too.
Status rename_durably(const std::string& from, const std::string& to);

// Puts a note in place of the one that is there, in one step. When the power goes, the older one may be back; either is
// whole.
Status replace_note(const std::string& path, std::string_view text);

}  // namespace tandem
