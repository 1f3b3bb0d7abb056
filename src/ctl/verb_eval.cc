// tandem eval: perplexity of a text.
#include <cstdio>

#include "ctl/tool_process.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

int verb_eval(const EvalOptions& options) {
  auto text = open_file(options.text_file);
  if (!text.ok())
    return std::fprintf(stderr, "tandem eval: %s\n", text.status().message().c_str()), 1;
  std::vector<std::string> arguments = {"--tokens",      std::to_string(options.n_tokens),
                                        "--threads",     std::to_string(options.threads),
                                        "--activations", options.activations,
                                        "--weights",     options.weights,
                                        "--force-isa",   options.force_isa};
  if (options.json) arguments.push_back("--json");
  return run_worker_tool("eval", {options.model, std::move(text).value()}, arguments);
}

}  // namespace tandem::ctl
