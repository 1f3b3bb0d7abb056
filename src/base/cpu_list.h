// Lists of processors as the kernel writes them: "0-3,6".
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace tandem {

// Ascending, each once. kInvalidArgument for anything but numbers 0 to 1023 and rising ranges of them; an empty
// text is no list.
Result<std::vector<int>> parse_cpu_list(const std::string& text);
// One list for each of `n` workers: "0-3;4-7", one list for all, or "" for no restriction ("" each).
Result<std::vector<std::string>> split_cpu_lists(const std::string& text, int n);

}  // namespace tandem
