// tandem inspect: what a model file is, read in the worker's sandbox.
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

int verb_inspect(const InspectOptions& options) {
  std::vector<std::string> arguments;
  if (options.json) arguments.push_back("--json");
  return run_worker_tool("inspect", {options.model, {}}, arguments);
}

}  // namespace tandem::ctl
