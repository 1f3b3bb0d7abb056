// Byte-level BPE ("gpt2"): pre-tokenizer, then merges by rank inside each word.
#pragma once

#include "tokenizer/tokenizer.h"

namespace tandem {

// The vocabulary has passed check_vocabulary.
Result<std::unique_ptr<Tokenizer>> create_bpe_tokenizer(Vocabulary vocabulary);

// GPT-2 writes each byte as a printable character (bytes_to_unicode in its encoder.py). Bytes of
// such a spelling; false when a character stands for no byte.
bool bytes_of_spelling(std::string_view spelling, std::string* bytes);
std::string spelling_of_byte(uint8_t byte);

}  // namespace tandem
