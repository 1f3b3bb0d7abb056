// The tokenizer keys of a GGUF file as a Vocabulary. Lives in worker/ because the tokenizer room
// knows no file format and the gguf room no vocabulary.
#pragma once

#include "base/status.h"
#include "gguf/gguf_reader.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

// Reads tokenizer.ggml.* and tokenizer.chat_template. Absent optional keys get the format's
// defaults (a "llama" vocabulary adds BOS and a space prefix unless told otherwise).
// kInvalidArgument names the key, what was found and what is allowed; what the values mean together
// is checked by Tokenizer::create.
Result<Vocabulary> read_vocabulary(const GgufModel& model);

}  // namespace tandem
