// Tool mode of the worker: what `tandem inspect | tokenize | bench | eval | quantize | doctor` need of the
// model code, in the same sandbox as serving. The parent opens the files; the tool gets
// descriptors.
//   tandem-worker --tool NAME [--model-fds 4,5 --model-names a.gguf,b.gguf] [--text-fd 6]
//   [--out-fd 7] [--made-fd 8] [--force-isa X] [--threads N] [--json] [options of the tool]
#pragma once

#include <string>
#include <vector>

namespace tandem {

// Runs tool `name` with the arguments after it; prints its result on stdout, progress and errors on
// stderr. Returns the exit code: 0, 1 (the tool found a fault, a disk or memory is too small, or a file is in the way), 2 (wrong arguments), 70 (our bug),
// 78 (model).
int run_tool(const std::string& name, const std::vector<std::string>& args);

}  // namespace tandem
