// Whether two files are of one model: what is computed on which tokens, not with which numbers. Pure.
#pragma once

#include <optional>
#include <string>

#include "model/model_config.h"

namespace tandem {

struct ConfigDifference {
  std::string what, wanted, found;  // "layers", "30", "18"
};
// The first thing that `other` does otherwise than `model`; none: either goes on with K/V of the other. What has no part in
// that is not looked at: the name, the trained context, whether the output matrix is the embedding once more.
std::optional<ConfigDifference> config_difference(const ModelConfig& model, const ModelConfig& other);

}  // namespace tandem
