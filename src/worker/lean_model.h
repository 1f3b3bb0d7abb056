// The file of weights.lean: a second file of the model that is served, whose weights become its lean set. Whatever is wrong
// with it is told and costs the lean set, never the service.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cpu/pack_cache.h"
#include "gguf/gguf_reader.h"
#include "model/model_config.h"
#include "model/weights.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

// As it comes from tandemd.
struct LeanSource {
  std::vector<GgufFile> files;  // its parts in order; empty: `trouble` says why, or none was asked for
  PackCache::Files cache;       // of its weights, packed
  std::string trouble;
};

struct LeanModel {
  std::unique_ptr<GgufModel> file;
  ModelWeights weights;  // views into it
};

// Opens and compares it with the model: the same computation on the same tokens. That its weights are of the same training
// cannot be seen. An error names the file; of another model, what differs with both values, and what helps.
Result<LeanModel> open_lean_model(std::vector<GgufFile> files, const std::string& model_name, const ModelConfig& config,
                                  const Vocabulary& vocabulary, int context_limit);

}  // namespace tandem
