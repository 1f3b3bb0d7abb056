// Arguments of tool mode, and the tools themselves.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "cpu/cpu_info.h"

namespace tandem {

struct ToolArgs {
  std::vector<int> model_fds;            // parts of the model, in order; empty: none
  std::vector<std::string> model_names;  // one each, for messages
  int text_fd = -1;
  int out_fd = -1;   // open for reading and writing
  int made_fd = -1;  // the file that has the name of the output already
  std::map<std::string, std::string> values;  // "--prompt" -> "512"
  std::set<std::string> flags;                // "--json"

  bool has(const std::string& flag) const { return flags.count(flag) > 0; }
  std::string text(const std::string& name, const std::string& otherwise) const;
  // kInvalidArgument states the bounds.
  Result<int64_t> number(const std::string& name, int64_t otherwise, int64_t low,
                         int64_t high) const;
};

Result<ToolArgs> parse_tool_args(const std::vector<std::string>& args);
// "1,16" -> {1, 16}; every number in [low, high], at least one.
Result<std::vector<int>> parse_numbers(const std::string& name, const std::string& text, int low,
                                       int high);
// All bytes of args.text_fd.
Result<std::string> read_tool_text(const ToolArgs& args);

// What a tool is given. The sandbox is closed already.
struct ToolContext {
  ToolArgs args;
  CpuInfo cpu;
  int64_t memory_bytes = 0;  // as HostFacts
};
// Each prints its result on stdout. An error is somebody's input (exit code 78), unless kInternal.
Result<int> tool_inspect(const ToolContext& context);
Result<int> tool_tokenize(const ToolContext& context);
Result<int> tool_bench(const ToolContext& context);
Result<int> tool_eval(const ToolContext& context);
Result<int> tool_quantize(const ToolContext& context);
Result<int> tool_doctor(const ToolContext& context);

}  // namespace tandem
