// Tokens to a Program: statements here, expressions in expression_parser.
#pragma once

#include <memory>
#include <string_view>

#include "jinja/ast.h"

namespace tandem::jinja {

// Throws RenderError with the line. Nesting beyond `max_depth` is an error.
std::unique_ptr<Program> parse_program(std::string_view source, int max_depth);

}  // namespace tandem::jinja
