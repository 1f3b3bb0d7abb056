// What both kinds of tokenizer share: special tokens, BOS and EOS, ids back to bytes.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "tokenizer/bpe.h"
#include "tokenizer/end_tokens.h"
#include "tokenizer/special_matcher.h"
#include "tokenizer/spm.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary_check.h"

namespace tandem {

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // offsets inside the tokenizers are 32 bits wide

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(Vocabulary vocabulary) {
  CHECK_OK(check_vocabulary(vocabulary));
  if (vocabulary.model == "gpt2") return create_bpe_tokenizer(std::move(vocabulary));
  if (vocabulary.model == "llama") return create_spm_tokenizer(std::move(vocabulary));
  return unimplemented(fmt::format(
      "tokenizer.ggml.model: \"{}\" is not served; served are gpt2, llama", vocabulary.model));
}

Tokenizer::Tokenizer(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)),
      end_tokens_(find_end_tokens(vocabulary_)),
      special_(std::make_unique<SpecialMatcher>(vocabulary_)) {}

Tokenizer::~Tokenizer() = default;

Status Tokenizer::encode(std::string_view text, EncodeOptions options,
                         std::vector<int32_t>* ids) const {
  const TextRange whole{0, text.size()};
  return encode_ranges(text, std::span(&whole, options.parse_special ? 1 : 0), options.add_special,
                       ids);
}

Status Tokenizer::encode_ranges(std::string_view text, std::span<const TextRange> special_ranges,
                                bool add_special, std::vector<int32_t>* ids) const {
  if (text.size() > kMaxTextBytes) {
    return invalid_argument(
        fmt::format("the text has {} bytes; allowed at most {}", text.size(), kMaxTextBytes));
  }
  if (const size_t valid = utf8_valid_prefix(text); valid != text.size()) {
    return invalid_argument(fmt::format("the text is not valid UTF-8 at byte {}", valid));
  }
  std::vector<TextFragment> fragments;
  special_->split(text, special_ranges, &fragments);
  const Vocabulary& v = vocabulary_;
  const bool add_bos = add_special && v.add_bos && v.bos >= 0;
  const bool add_eos = add_special && v.add_eos && v.eos >= 0;
  if (add_bos && (fragments.empty() || fragments.front().id != v.bos)) ids->push_back(v.bos);
  CHECK_OK(encode_fragments(text, fragments, ids));
  if (add_eos && (fragments.empty() || fragments.back().id != v.eos)) ids->push_back(v.eos);
  return {};
}

std::string Tokenizer::token_bytes(int32_t id, bool special) const {
  if (id < 0 || id >= n_tokens()) return {};
  const auto i = static_cast<size_t>(id);
  const int32_t type =
      vocabulary_.types.empty() ? static_cast<int32_t>(kTokenNormal) : vocabulary_.types[i];
  if (type == kTokenControl || type == kTokenUnknown)
    return special ? vocabulary_.tokens[i] : std::string();
  if (type == kTokenUserDefined) return vocabulary_.tokens[i];
  return spelled_bytes(id);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  DetokenizeStream stream(this, special, true);
  std::string text;
  for (int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

bool Tokenizer::is_end(int32_t id) const {
  return std::binary_search(end_tokens_.begin(), end_tokens_.end(), id);
}

std::string DetokenizeStream::push(int32_t id) {
  std::string bytes = tokenizer_->token_bytes(id, special_);
  if (bytes.empty()) return {};
  if (at_start_ && tokenizer_->vocabulary().add_space_prefix && bytes[0] == ' ') bytes.erase(0, 1);
  at_start_ = false;
  pending_ += bytes;
  std::string out;
  utf8_drain(&pending_, &out);
  return out;
}

std::string DetokenizeStream::finish() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return unfinished ? "\xEF\xBF\xBD" : "";
}

Status encode_pieces(const Tokenizer& tokenizer, std::span<const PromptPiece> pieces,
                     bool add_special, std::vector<int32_t>* ids) {
  std::string text;
  std::vector<TextRange> scaffold;
  for (const PromptPiece& piece : pieces) {
    const size_t begin = text.size();
    text += piece.text;
    if (!piece.is_scaffold || piece.text.empty()) continue;
    if (!scaffold.empty() && scaffold.back().end == begin) {
      scaffold.back().end = text.size();
    } else {
      scaffold.push_back({begin, text.size()});
    }
  }
  return tokenizer.encode_ranges(text, scaffold, add_special, ids);
}

}  // namespace tandem
