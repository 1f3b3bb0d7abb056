// The file of packed weights for a worker: opened here because a worker opens nothing, put in place here once
// the worker has filled it. One file a model path under the cache folder, so a replaced model's is replaced
// too. Its contents concern the worker alone, which checks all of it at each start: so nothing here waits for
// the disk, and a file lost or torn with the power is only packed anew.
#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "supervisor/model_files.h"

namespace tandem {

struct WeightsCache {
  std::string folder, name;
  UniqueFd existing;    // read-only; invalid: there is none
  UniqueFd fresh;       // a new file without a name; invalid: none can be stored
  std::string trouble;  // why there is no `fresh`
};

// `model` as opened from `model_path`. Never fails: without a cache a worker packs in memory.
WeightsCache open_weights_cache(const std::string& folder, const std::string& model_path,
                                const OpenModel& model);
// Gives `fresh` its name, in place of the older file in one step, and closes it.
Status publish_weights_cache(WeightsCache* cache);

}  // namespace tandem
