// Source to tokens, with the whitespace rules of trim_blocks and lstrip_blocks applied to the text between tags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

namespace tandem::jinja {

enum class TokenType { kData, kBlockBegin, kBlockEnd, kOutputBegin, kOutputEnd, kName, kString, kNumber, kOp, kEnd };

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // kData, kName, kString (unescaped), kOp
  Value number;      // kNumber
  int line = 1;
};

// Throws RenderError with the line. Linear in the source's length.
std::vector<Token> tokenize(std::string_view source);

}  // namespace tandem::jinja
