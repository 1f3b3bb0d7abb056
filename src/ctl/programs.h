// Where the other programs of the appliance are.
#pragma once

#include <string>

#include "base/status.h"

namespace tandem::ctl {

// Beside this program, in the build tree, where the package puts it, then on PATH (tandemd only).
// kNotFound lists the places.
Result<std::string> find_tandemd();
Result<std::string> find_worker();
Result<std::string> find_cuda_worker();

}  // namespace tandem::ctl
