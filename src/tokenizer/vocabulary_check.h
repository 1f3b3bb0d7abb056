// Checks a Vocabulary that came from a foreign file before anything is built from it.
#pragma once

#include "tokenizer/tokenizer.h"

namespace tandem {

constexpr size_t kMaxTokenBytes = 16384;  // the longest token of a served family has 512 bytes

// Lengths of the arrays, ids in range, spelling of each token. kInvalidArgument names the field by
// its GGUF key, what was found and what is allowed.
Status check_vocabulary(const Vocabulary& vocabulary);

// Value of a byte token's spelling "<0xHH>", or -1.
int byte_token_value(const std::string& token);

}  // namespace tandem
