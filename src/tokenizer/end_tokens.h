// Texts with which model families end a turn or a document, whatever type a file gives them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace tandem {

// A token of this text is never parsed from a user's text, even if the file calls it user-defined.
bool is_end_text(std::string_view text);

// Ids that end generation: eos, eot, the further ones of the file, and special tokens of an end
// text. "</s>" ends only as a control token: in vocabularies with HTML tags it closes a struck-out
// passage. Ascending.
std::vector<int32_t> find_end_tokens(const Vocabulary& vocabulary);

}  // namespace tandem
