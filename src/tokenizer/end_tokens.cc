#include "tokenizer/end_tokens.h"

#include <algorithm>
#include <array>

namespace tandem {

namespace {

constexpr std::string_view kEndOfSentence = "</s>";
constexpr std::array<std::string_view, 23> kEndTexts = {kEndOfSentence,
                                                        "<|im_end|>",
                                                        "<|eot_id|>",
                                                        "<|eom_id|>",
                                                        "<end_of_turn>",
                                                        "<|end|>",
                                                        "<|endoftext|>",
                                                        "<|eot|>",
                                                        "<|end_of_text|>",
                                                        "<|eom|>",
                                                        "<EOT>",
                                                        "_<EOT>",
                                                        "[EOT]",
                                                        "[EOS]",
                                                        "<|end_of_turn|>",
                                                        "<|endofturn|>",
                                                        "<turn_end>",
                                                        "<|return|>",
                                                        "<|call|>",
                                                        "<|flush|>",
                                                        "<|calls|>",
                                                        "<eos>",
                                                        "<end_of_utterance>"};

}  // namespace

bool is_end_text(std::string_view text) {
  return std::find(kEndTexts.begin(), kEndTexts.end(), text) != kEndTexts.end();
}

std::vector<int32_t> find_end_tokens(const Vocabulary& v) {
  std::vector<int32_t> ids = v.extra_end_tokens;
  ids.push_back(v.eos);
  ids.push_back(v.eot);
  for (size_t i = 0; i < v.types.size(); ++i) {
    const bool ends = v.types[i] == kTokenControl ||
                      (v.types[i] == kTokenUserDefined && v.tokens[i] != kEndOfSentence);
    if (ends && is_end_text(v.tokens[i])) ids.push_back(static_cast<int32_t>(i));
  }
  std::erase(ids, -1);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace tandem
