// Rows of the request log as text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ipc/request_record.h"

namespace tandem::ctl {

// Aligned columns, one line a row, newest first as given; a header line first.
std::string format_table(const std::vector<ipc::RequestRecord>& rows);

// "90s", "15m", "2h", "7d" before now_us; or a UTC time "2026-11-29", "2026-11-29T12:34:56[Z]"; or
// seconds since 1970. Microseconds since 1970; kInvalidArgument otherwise.
Result<int64_t> parse_since(const std::string& text, int64_t now_us);

}  // namespace tandem::ctl
