// Finds and opens the model's file(s) for a worker: by name only, nothing here reads a byte of
// them. Also says when they changed, so that a refused model is tried again. Thread-safe (no
// state).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tandem {

struct OpenModel {
  std::vector<UniqueFd> fds;       // one per part, read-only
  std::vector<std::string> paths;  // the same order
};

// Path of the first part: model.path, or the only model in <state_dir>/models. kNotFound: none
// there (yet); kInvalidArgument: several and no model.path (a configuration fault).
Result<std::string> find_model(const Config& config);
// All parts of a split file by its name (`x-00001-of-0000N.gguf`), else just `path`.
std::vector<std::string> model_parts(const std::string& path);
// Opens all parts. A refusal names path, user and the missing permission.
Result<OpenModel> open_model(const std::string& path);
// The id the API serves it under: model.name, else the file name without `.gguf` and split suffix.
std::string served_model_name(const Config& config, const std::string& path);
// Changes whenever one of the parts does (device, inode, size, mtime) or comes or goes.
std::string model_stamp(const std::string& path);
int64_t model_mtime_s(const std::string& path);  // 0: not there

}  // namespace tandem
