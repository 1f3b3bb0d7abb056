// Checks of `tandem doctor` that need no model code: each gives lines with a verdict and, unless all is well, a
// remedy. They change nothing.
#pragma once

#include <string>
#include <vector>

#include "base/config.h"

namespace tandem::ctl {

struct DoctorLine {
  const char* verdict;  // "pass", "warn", "fail"
  std::string what, found, remedy;
};

DoctorLine check_folder(const std::string& what, const std::string& folder);
// Can server.listen be bound, or does a Tandem hold it already?
DoctorLine check_port(const Config& config);
// The key files: readable by us, by nobody else.
std::vector<DoctorLine> check_key_files(const Config& config);
// A display or compute device of this maker on the PCI bus.
bool has_nvidia_card(const std::string& root);
// Graphics card and driver, from sysfs below `root` ("" = the real one).
DoctorLine check_device(const std::string& root);
// `utc_us` is what the clock says; `is_synchronized` what the kernel says of it.
DoctorLine check_clock(int64_t utc_us, bool is_synchronized);
DoctorLine check_clock();
// The sha256 of a model file, compared with FILE.sha256 beside it (as sha256sum writes it) where there is one.
DoctorLine check_model_hash(const std::string& model, const std::string& memory_path);

// The file that weights.lean names: there, and readable by us.
DoctorLine check_lean_file(const std::string& path);

}  // namespace tandem::ctl
