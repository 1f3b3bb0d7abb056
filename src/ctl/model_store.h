// The folder of models, <state_dir>/models: what is there, which one is served, how a new one comes in. A model appears
// under its name in one rename, so that a half-written file is never taken for one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace tandem::ctl {

struct StoredModel {
  std::string name;  // file name
  int64_t bytes = 0;
  bool is_default = false;
};

class ModelStore {
 public:
  explicit ModelStore(std::string folder) : folder_(std::move(folder)) {}

  Status create() const;  // the folder, if it is missing
  Result<std::vector<StoredModel>> list() const;
  // tandemd serves what the link `default` names, where model.path is not set.
  Status set_default(const std::string& name) const;

  // Where bytes on their way to `name` are collected; kept between attempts.
  std::string partial_path(const std::string& name) const { return folder_ + "/." + name + ".partial"; }
  // kExhausted, with both numbers, unless `bytes` more fit and leave room for the request log.
  Status check_space(int64_t bytes) const;
  // Checks what was collected (a GGUF file, the SHA-256 if given), writes it through and gives it its name. Returns the
  // SHA-256. A file that fails is removed.
  Result<std::string> take_in(const std::string& name, const std::string& expected_sha256) const;

 private:
  std::string folder_;
};

// 1 to 200 letters, digits, '.', '_', '-', not starting with '.', ending in .gguf: never a path.
Status check_model_name(const std::string& name);

// Copies into `to`, going on behind the bytes that are there if they are the beginning of `from`. Progress on stderr.
Status copy_file(const std::string& from, const std::string& to, const ModelStore& store);

}  // namespace tandem::ctl
