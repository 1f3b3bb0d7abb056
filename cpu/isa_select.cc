#include "cpu/isa_select.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace tandem {
namespace {

// The words of `needs` that the CPU has not, joined by blanks; empty: the column runs here.
std::string missing_features(const CpuInfo& cpu, const char* needs) {
  std::string missing;
  std::istringstream words(needs);
  for (std::string feature; words >> feature;) {
    if (std::find(cpu.features.begin(), cpu.features.end(), feature) == cpu.features.end()) {
      missing += (missing.empty() ? "" : " ") + feature;
    }
  }
  return missing;
}

}  // namespace

Result<const KernelTable*> select_kernels(const CpuInfo& cpu, const std::string& force) {
  int n_columns = 0;
  const KernelColumn* columns = kernel_columns(&n_columns);
  std::string wanted = force;
  const char* source = "cpu.force_isa";
  if (wanted.empty()) {
    const char* from_environment = std::getenv("TANDEM_FORCE_ISA");
    wanted = from_environment ? from_environment : "";
    source = "TANDEM_FORCE_ISA";
  }

  std::string names;
  for (int i = n_columns - 1; i >= 0; --i) {
    const char* name = columns[i].table->isa;
    const std::string missing = missing_features(cpu, columns[i].needs);
    if (wanted.empty() && missing.empty()) return columns[i].table;
    if (wanted == name && missing.empty()) return columns[i].table;
    if (wanted == name) {
      return invalid_argument(fmt::format(
          "{} = \"{}\": this CPU ({}) lacks {}; choose another or leave it empty for the best", source,
          wanted, cpu.model_name, missing));
    }
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  if (wanted.empty()) return internal_error("no kernel column runs on this CPU");
  return invalid_argument(fmt::format("{} = \"{}\" is not one of {}; leave it empty for the best", source,
                                      wanted, names));
}

}  // namespace tandem
