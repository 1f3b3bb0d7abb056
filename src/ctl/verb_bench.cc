// tandem bench: prefill and decode speed of a model on this machine, and how near that is to what
// it can do.
#include "ctl/bench_roles.h"
#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

int verb_bench(const BenchOptions& options) {
  if (!options.roles.empty()) return bench_roles(options);
  std::vector<std::string> arguments = {"--prompt",      std::to_string(options.prompt),
                                        "--gen",         std::to_string(options.gen),
                                        "--batch",       options.batches,
                                        "--repeat",      std::to_string(options.repeat),
                                        "--chunk",       std::to_string(options.chunk),
                                        "--threads",     std::to_string(options.threads),
                                        "--activations", options.activations,
                                        "--weights",     options.weights,
                                        "--force-isa",   options.force_isa};
  if (options.json) arguments.push_back("--json");
  return run_worker_tool("bench", {options.model, {}}, arguments);
}

}  // namespace tandem::ctl
