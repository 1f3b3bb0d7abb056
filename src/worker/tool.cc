#include "worker/tool.h"

#include <cstdio>

#include "cpu/dense_library.h"
#include "worker/host_facts.h"
#include "worker/sandbox.h"
#include "worker/tool_args.h"

namespace tandem {

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitBug = 70;
constexpr int kExitModel = 78;

struct Tool {
  const char* name;
  Result<int> (*run)(const ToolContext&);
};
constexpr Tool kTools[] = {{"inspect", tool_inspect},
                           {"tokenize", tool_tokenize},
                           {"bench", tool_bench},
                           {"eval", tool_eval},
                           {"quantize", tool_quantize},
                           {"doctor", tool_doctor}};

const Tool* find_tool(const std::string& name) {
  for (const Tool& tool : kTools) {
    if (name == tool.name) return &tool;
  }
  return nullptr;
}

int fail(const std::string& name, const Status& status, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "tandem %s: %s\n", name.c_str(), status.message().c_str());
  return code;
}

}  // namespace

int run_tool(const std::string& name, const std::vector<std::string>& args) {
  const Tool* tool = find_tool(name);
  if (!tool) return fail(name, invalid_argument("no such tool"), kExitUsage);
  auto parsed = parse_tool_args(args);
  if (!parsed.ok()) return fail(name, parsed.status(), kExitUsage);
  // Asked before the sandbox closes /proc and /sys.
  const HostFacts host = read_host_facts();
  const ToolContext context{std::move(parsed).value(), host.cpu, host.memory_bytes};
  if (name == "doctor") (void)DenseLibrary::open();  // while files may be opened
  harden_process();
  const auto sandbox = enter_sandbox();
  if (!sandbox.ok()) return fail(name, sandbox.status(), kExitBug);
  const auto code = tool->run(context);
  if (code.ok()) return *code;
  switch (code.status().code()) {
    case StatusCode::kInternal: return fail(name, code.status(), kExitBug);
    case StatusCode::kFailedPrecondition:
    case StatusCode::kExhausted: return fail(name, code.status(), kExitFailed);
    default: return fail(name, code.status(), kExitModel);
  }
}

}  // namespace tandem
