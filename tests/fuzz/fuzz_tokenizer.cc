// Text to ids and back with small vocabularies of both kinds. First byte: vocabulary and options; rest: text,
// which is also taken as a list of ids.
#include "fuzz_target.h"
#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"

namespace tandem {
namespace {

Vocabulary bpe_vocabulary(const char* pre) {
  Vocabulary v;
  v.model = "gpt2";
  v.pre = pre;
  v.tokens = {"<bos>", "<eos>", "<|im_start|>", "<|im_end|>"};
  v.types = {3, 3, 3, 3};
  for (int b = 0; b < 256; ++b) v.tokens.push_back(spelling_of_byte(static_cast<uint8_t>(b)));
  for (const char* merge : {"h e", "l l", "he ll", "hell o", "a a", "aa aa", "1 2", "Ġ t", "Ã ©"}) {
    v.merges.push_back(merge);
    std::string merged = merge;
    merged.erase(merged.find(' '), 1);
    v.tokens.push_back(merged);
  }
  v.types.resize(v.tokens.size(), 1);
  v.bos = 0;
  v.eos = 1;
  v.add_bos = true;
  return v;
}

Vocabulary spm_vocabulary(bool add_space_prefix) {
  Vocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>"};
  v.types = {2, 3, 3};
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(b));
    v.tokens.push_back(text);
    v.types.push_back(6);
  }
  v.scores.assign(v.tokens.size(), 0);
  for (const char* piece : {"he", "ll", "▁t", "hell", "hello", "▁the", "h", "e", "l", "o", "t", "▁", "a", "aa", "é"}) {
    v.scores.push_back(-static_cast<float>(v.tokens.size()));
    v.tokens.push_back(piece);
    v.types.push_back(1);
  }
  v.unknown = 0;
  v.bos = 1;
  v.eos = 2;
  v.add_bos = true;
  v.add_space_prefix = add_space_prefix;
  return v;
}

const Tokenizer& tokenizer_of(unsigned kind) {
  static const auto* kTokenizers = [] {
    auto* all = new std::vector<std::unique_ptr<Tokenizer>>;
    for (Vocabulary v : {bpe_vocabulary("gpt-2"), bpe_vocabulary("llama-bpe"), bpe_vocabulary("qwen2"),
                         bpe_vocabulary("smollm"), spm_vocabulary(false), spm_vocabulary(true)}) {
      auto made = Tokenizer::create(std::move(v));
      FUZZ_REQUIRE(made.ok());
      all->push_back(std::move(made).value());
    }
    return all;
  }();
  return *(*kTokenizers)[kind % kTokenizers->size()];
}

void check_text(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options) {
  std::vector<int32_t> ids;
  if (!tokenizer.encode(text, options, &ids).ok()) return;
  for (const int32_t id : ids) FUZZ_REQUIRE(id >= 0 && id < tokenizer.n_tokens());
  if (options.add_special) FUZZ_REQUIRE(ids.size() < 2 || ids[0] == tokenizer.vocabulary().bos);
  // Plain text comes back as it was; a SentencePiece vocabulary takes U+2581 for a blank.
  const bool has_block = text.find("\xE2\x96\x81") != std::string_view::npos;
  const bool is_plain = !options.parse_special && !(tokenizer.vocabulary().model == "llama" && has_block);
  if (is_plain) FUZZ_REQUIRE(tokenizer.decode(ids, false) == text);
}

// Pieces give the ids of the whole text when none of them is scaffold.
void check_pieces(const Tokenizer& tokenizer, std::string_view text) {
  const size_t cut = text.size() / 2;
  const PromptPiece pieces[] = {{std::string(text.substr(0, cut)), true}, {std::string(text.substr(cut)), false}};
  std::vector<int32_t> ids;
  if (!encode_pieces(tokenizer, pieces, true, &ids).ok()) return;
  for (const int32_t id : ids) FUZZ_REQUIRE(id >= 0 && id < tokenizer.n_tokens());
}

// Token by token and all at once give the same bytes.
void check_ids(const Tokenizer& tokenizer, const uint8_t* data, size_t size) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < size; i += 2) ids.push_back((data[i] | data[i + 1] << 8) % 300 - 5);
  DetokenizeStream stream(&tokenizer, false, true);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  FUZZ_REQUIRE(streamed == tokenizer.decode(ids, false));
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  if (size == 0) return 0;
  const auto& tokenizer = tandem::tokenizer_of(data[0] >> 2);
  const std::string_view text = tandem::fuzz::view(data + 1, size - 1);
  tandem::check_text(tokenizer, text, {(data[0] & 1) != 0, (data[0] & 2) != 0});
  tandem::check_pieces(tokenizer, text);
  tandem::check_ids(tokenizer, data + 1, size - 1);
  return 0;
}
