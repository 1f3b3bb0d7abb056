// One check per field; the message names the field as the model file spells it.
#include "tokenizer/vocabulary_check.h"

#include <fmt/format.h>

#include <cmath>

#include "tokenizer/utf8.h"

namespace tandem {

namespace {

Status check_lengths(const Vocabulary& v) {
  const size_t n = v.tokens.size();
  if (n == 0) return invalid_argument("tokenizer.ggml.tokens: empty; at least one token is needed");
  if (n > static_cast<size_t>(INT32_MAX)) {
    return invalid_argument(
        fmt::format("tokenizer.ggml.tokens: {} entries; allowed at most {}", n, INT32_MAX));
  }
  if (!v.types.empty() && v.types.size() != n) {
    return invalid_argument(
        fmt::format("tokenizer.ggml.token_type: {} entries; allowed as many as tokens ({})",
                    v.types.size(), n));
  }
  if (!v.scores.empty() && v.scores.size() != n) {
    return invalid_argument(fmt::format(
        "tokenizer.ggml.scores: {} entries; allowed as many as tokens ({})", v.scores.size(), n));
  }
  if (v.model == "llama" && v.scores.empty()) {
    return invalid_argument(
        "tokenizer.ggml.scores: missing; a \"llama\" vocabulary needs one score a token");
  }
  return {};
}

Status check_id(const char* field, int32_t id, size_t n) {
  if (id >= -1 && id < static_cast<int64_t>(n)) return {};
  return invalid_argument(fmt::format("{}: {}; allowed 0 to {}", field, id, n - 1));
}

Status check_ids(const Vocabulary& v) {
  const size_t n = v.tokens.size();
  CHECK_OK(check_id("tokenizer.ggml.bos_token_id", v.bos, n));
  CHECK_OK(check_id("tokenizer.ggml.eos_token_id", v.eos, n));
  CHECK_OK(check_id("tokenizer.ggml.eot_token_id", v.eot, n));
  CHECK_OK(check_id("tokenizer.ggml.unknown_token_id", v.unknown, n));
  CHECK_OK(check_id("tokenizer.ggml.padding_token_id", v.padding, n));
  for (int32_t id : v.extra_end_tokens) CHECK_OK(check_id("tokenizer.ggml.eom_token_id", id, n));
  for (int32_t id : v.strip_right_tokens) {
    if (id < 0) return internal_error("strip_right_tokens holds a negative id");
    CHECK_OK(check_id("strip_right_tokens", id, n));
  }
  return {};
}

Status check_token(const Vocabulary& v, size_t i) {
  const std::string& token = v.tokens[i];
  if (token.size() > kMaxTokenBytes) {
    return invalid_argument(fmt::format("tokenizer.ggml.tokens[{}]: {} bytes; allowed at most {}",
                                        i, token.size(), kMaxTokenBytes));
  }
  if (const size_t valid = utf8_valid_prefix(token); valid != token.size()) {
    return invalid_argument(fmt::format(
        "tokenizer.ggml.tokens[{}]: byte {} is not UTF-8; tokens must be UTF-8", i, valid));
  }
  if (!v.scores.empty() && !std::isfinite(v.scores[i])) {
    return invalid_argument(fmt::format("tokenizer.ggml.scores[{}]: not a finite number", i));
  }
  const int32_t type = v.types.empty() ? static_cast<int32_t>(kTokenNormal) : v.types[i];
  if (type < 0 || type > kTokenByte) {  // 0: undefined, which some converters write for padding
    return invalid_argument(
        fmt::format("tokenizer.ggml.token_type[{}]: {}; allowed 0 to {}", i, type, +kTokenByte));
  }
  if (v.model == "llama" && type == kTokenByte && byte_token_value(token) < 0) {
    return invalid_argument(fmt::format(
        "tokenizer.ggml.tokens[{}]: a byte token must read <0x00> to <0xFF>, found {} bytes "
        "that do not",
        i, token.size()));
  }
  return {};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

int byte_token_value(const std::string& token) {
  if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Status check_vocabulary(const Vocabulary& vocabulary) {
  CHECK_OK(check_lengths(vocabulary));
  CHECK_OK(check_ids(vocabulary));
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) CHECK_OK(check_token(vocabulary, i));
  return {};
}

}  // namespace tandem
