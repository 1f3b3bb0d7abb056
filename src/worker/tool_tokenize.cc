// tandem tokenize: a text's ids and what each stands for.
#include <fmt/format.h>

#include <cstdio>

#include "tokenizer/tokenizer.h"
#include "worker/tool_args.h"
#include "worker/tool_model.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {

namespace {

// Printable on one line; bytes that are no whole characters as \xHH.
std::string show(const std::string& bytes) {
  std::string out = "\"";
  const bool is_text = bytes.empty() || [&] {
    for (size_t i = 0; i < bytes.size();) {
      const auto lead = static_cast<uint8_t>(bytes[i]);
      const size_t length = lead < 0x80   ? 1
                            : lead < 0xC0 ? 0
                            : lead < 0xE0 ? 2
                            : lead < 0xF0 ? 3
                                          : 4;
      if (length == 0 || i + length > bytes.size()) return false;
      for (size_t k = 1; k < length; ++k) {
        if ((static_cast<uint8_t>(bytes[i + k]) & 0xC0) != 0x80) return false;
      }
      i += length;
    }
    return true;
  }();
  for (char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && !is_text)) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

Result<int> tool_tokenize(const ToolContext& context) {
  const ToolArgs& args = context.args;
  CHECK_ASSIGN(const auto file, open_tool_model(args));
  CHECK_ASSIGN(Vocabulary vocabulary, read_vocabulary(*file));
  CHECK_ASSIGN(const auto tokenizer, Tokenizer::create(std::move(vocabulary)));
  CHECK_ASSIGN(const std::string text, read_tool_text(args));
  std::vector<int32_t> ids;
  CHECK_OK(tokenizer->encode(text, {!args.has("--no-special"), args.has("--parse-special")}, &ids));
  if (args.has("--ids")) {
    std::printf("%s\n", fmt::format("{}", fmt::join(ids, " ")).c_str());
    return 0;
  }
  for (int32_t id : ids)
    std::printf("%8d  %s\n", id, show(tokenizer->token_bytes(id, true)).c_str());
  std::fprintf(stderr, "%zu tokens, %zu bytes\n", ids.size(), text.size());
  return 0;
}

}  // namespace tandem
