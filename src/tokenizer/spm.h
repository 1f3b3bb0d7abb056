// SentencePiece-style tokenizer ("llama"): merges by score over the whole text, bytes for what no
// token spells.
#pragma once

#include "tokenizer/tokenizer.h"

namespace tandem {

// The vocabulary has passed check_vocabulary.
Result<std::unique_ptr<Tokenizer>> create_spm_tokenizer(Vocabulary vocabulary);

}  // namespace tandem
