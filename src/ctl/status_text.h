// The document of /status.json as lines for a terminal. Pure.
#pragma once

#include <string>

#include "base/status.h"

namespace tandem::ctl {

// kDataLoss: not a Tandem server's answer. Members that are absent show as "-".
Result<std::string> status_text(const std::string& json);

}  // namespace tandem::ctl
