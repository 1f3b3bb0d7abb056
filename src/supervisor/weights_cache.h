// The file of packed weights for a worker: opened here because a worker opens nothing, put in place here once
// the worker has filled it. One file a model path under the cache folder, so a replaced model's is replaced
// too; files of models that nobody has served for a month go when a new one comes, and sooner where there is no room.
// Its contents concern the worker alone, which checks them: so nothing here waits for the disk, and a file lost or torn
// with the power is only packed anew. Between two orderly stops the check need not come first: a mark beside the file
// tells.
#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "supervisor/model_files.h"

namespace tandem {

struct WeightsCache {
  std::string folder, name;
  UniqueFd existing;    // read-only; invalid: there is none
  std::string stamp;    // of `existing`: another file has another; empty: none
  UniqueFd fresh;       // a new file without a name; invalid: none can be stored
  std::string trouble;  // why there is no `fresh`
};

// `model` as opened from `model_path`. Never fails: without a cache a worker packs in memory. The file of `beside`, another
// model path that is in use, makes no room for this one.
WeightsCache open_weights_cache(const std::string& folder, const std::string& model_path,
                                const OpenModel& model, const std::string& beside = "");
// Gives `fresh` its name, in place of the older file in one step, and closes it; it is `existing` then.
Status publish_weights_cache(WeightsCache* cache);
// Takes a damaged file away, so that the next start packs anew.
void remove_weights_cache(const WeightsCache& cache);

// The mark of an orderly stop: the stamp of the file that was whole then. Taken, it is gone: a power cut later leaves
// none.
void leave_whole_mark(const WeightsCache& cache);
std::string take_whole_mark(const WeightsCache& cache);

}  // namespace tandem
