// Runs tandem-worker in tool mode: this process opens the files, the worker gets descriptors and a
// sandbox.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace tandem::ctl {

struct ToolFiles {
  std::string model;  // path of the model (its first part); empty: none
  UniqueFd text = {};  // handed on as --text-fd if valid
  UniqueFd output = {};  // handed on as --out-fd if valid
  UniqueFd made = {};    // handed on as --made-fd if valid
};

// Paths of all parts of `path` by the name rule "-00001-of-0000N.gguf"; {path} for a single file.
std::vector<std::string> model_parts(const std::string& path);

// A descriptor of the bytes of `text`, or of the file at `path`.
Result<UniqueFd> text_descriptor(const std::string& text);
Result<UniqueFd> open_file(const std::string& path);
// All of stdin; kInvalidArgument past 1 GiB.
Result<std::string> read_stdin();

// Runs the tool to its end and returns its exit code; 1 with a message on stderr when it cannot be
// started or dies.
int run_worker_tool(const std::string& tool, ToolFiles files,
                    const std::vector<std::string>& arguments);

// Runs it with these arguments and gives what it writes to stdout and stderr, whatever its exit code. "/proc/self/exe" is this very
// program.
Result<std::string> capture_program(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace tandem::ctl
