#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <unordered_map>

#include "tokenizer/merge.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/utf8.h"
#include "tokenizer/word_cache.h"

namespace tandem {

namespace {

// Printable Latin-1 stands for itself; the other bytes are numbered from U+0100 in ascending order.
struct ByteAlphabet {
  std::array<uint32_t, 256> code_point{};
  std::array<int16_t, 0x144> byte{};  // by code point; -1: stands for none
  ByteAlphabet() {
    byte.fill(-1);
    uint32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      code_point[b] = printable ? b : next++;
      byte[code_point[b]] = static_cast<int16_t>(b);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

// (left token, right token) -> rank and merged token; open addressing.
class MergeTable {
 public:
  explicit MergeTable(size_t n_merges) : slots_(std::bit_ceil(n_merges * 2 + 2)) {}
  void insert(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
    Slot& slot = slots_[find_slot(key_of(left, right))];
    if (slot.rank == kNoRank)
      slot = {key_of(left, right), rank, merged};  // of two equal merges the first counts
  }
  bool find(int32_t left, int32_t right, uint32_t* rank, int32_t* merged) const {
    const Slot& slot = slots_[find_slot(key_of(left, right))];
    if (slot.rank == kNoRank) return false;
    *rank = slot.rank;
    *merged = slot.merged;
    return true;
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t rank = kNoRank;
    int32_t merged = -1;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t find_slot(uint64_t key) const {
    const uint64_t mixed = key * 0x9E3779B97F4A7C15ull;
    size_t i = static_cast<size_t>(mixed ^ mixed >> 32) & (slots_.size() - 1);
    while (slots_[i].rank != kNoRank && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  std::vector<Slot> slots_;
};

using TokenIndex = std::unordered_map<std::string_view, int32_t>;

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Vocabulary vocabulary, std::unique_ptr<PreTokenizer> pre)
      : Tokenizer(std::move(vocabulary)),
        pre_(std::move(pre)),
        merges_(vocabulary_.merges.size()) {}

  Status build();

 protected:
  Status encode_fragments(std::string_view text, std::span<const TextFragment> fragments,
                          std::vector<int32_t>* ids) const override;
  std::string spelled_bytes(int32_t id) const override {
    std::string bytes;
    const std::string& spelling = vocabulary_.tokens[static_cast<size_t>(id)];
    return bytes_of_spelling(spelling, &bytes) ? bytes : spelling;
  }

 private:
  int32_t type(int32_t id) const {
    return vocabulary_.types.empty() ? static_cast<int32_t>(kTokenNormal)
                                     : vocabulary_.types[static_cast<size_t>(id)];
  }
  bool is_special(int32_t id) const {
    return type(id) == kTokenControl || type(id) == kTokenUnknown;
  }
  Status add_merge(const TokenIndex& index, size_t i);
  void encode_word(std::string_view word, std::vector<MergeSymbol>* symbols,
                   std::vector<int32_t>* ids) const;
  void append_symbol(int32_t id, std::vector<int32_t>* ids) const;

  std::unique_ptr<PreTokenizer> pre_;
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_{};  // -1: the vocabulary cannot spell the byte
  std::unordered_map<std::string, int32_t>
      whole_words_;  // raw bytes; only if the family ignores merges
};

Status BpeTokenizer::build() {
  TokenIndex index;
  index.reserve(vocabulary_.tokens.size());
  for (size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
    index.insert_or_assign(vocabulary_.tokens[i], static_cast<int32_t>(i));
  }
  for (unsigned b = 0; b < 256; ++b) {
    const auto found = index.find(spelling_of_byte(static_cast<uint8_t>(b)));
    byte_ids_[b] = found == index.end() || is_special(found->second) ? -1 : found->second;
  }
  for (size_t i = 0; i < vocabulary_.merges.size(); ++i) CHECK_OK(add_merge(index, i));
  if (!pre_->ignores_merges()) return {};
  for (size_t i = 0; i < vocabulary_.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    std::string bytes;
    if (is_special(id) || !bytes_of_spelling(vocabulary_.tokens[i], &bytes)) continue;
    whole_words_.insert_or_assign(std::move(bytes), id);
  }
  return {};
}

Status BpeTokenizer::add_merge(const TokenIndex& index, size_t i) {
  const std::string& merge = vocabulary_.merges[i];
  const size_t space = merge.find(' ', 1);
  if (space == std::string::npos || space + 1 == merge.size()) {
    return invalid_argument(fmt::format(
        "tokenizer.ggml.merges[{}]: found no two parts; a merge reads \"left right\"", i));
  }
  const std::string left = merge.substr(0, space), right = merge.substr(space + 1);
  int32_t ids[3];
  const char* part[3] = {"left part", "right part", "result"};
  const std::string texts[3] = {left, right, left + right};
  for (int k = 0; k < 3; ++k) {
    const auto found = index.find(texts[k]);
    if (found == index.end()) {
      return invalid_argument(fmt::format(
          "tokenizer.ggml.merges[{}]: its {} is not in tokenizer.ggml.tokens; each must be", i,
          part[k]));
    }
    ids[k] = found->second;
  }
  // Plain text never becomes a control token, even if a merge says so.
  if (!is_special(ids[2])) merges_.insert(ids[0], ids[1], static_cast<uint32_t>(i), ids[2]);
  return {};
}

// A byte that the vocabulary cannot spell (SmolLM2 lacks six control characters) is the unknown
// token, or left out where there is none: what the reference and the families' own tokenizers do.
void BpeTokenizer::append_symbol(int32_t id, std::vector<int32_t>* ids) const {
  const int32_t unknown = vocabulary_.unknown;
  if (id < 0 && unknown >= 0 && type(unknown) == kTokenUnknown) id = unknown;
  if (id >= 0) ids->push_back(id);
}

void BpeTokenizer::encode_word(std::string_view word, std::vector<MergeSymbol>* symbols,
                               std::vector<int32_t>* ids) const {
  if (pre_->ignores_merges()) {
    const auto found = whole_words_.find(std::string(word));
    if (found != whole_words_.end()) return ids->push_back(found->second);
  }
  const auto n = static_cast<int32_t>(word.size());
  symbols->resize(word.size());
  for (int32_t i = 0; i < n; ++i) {
    (*symbols)[static_cast<size_t>(i)] = {
        byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])], static_cast<uint32_t>(i), 1,
        i - 1, i + 1 < n ? i + 1 : -1};
  }
  merge_symbols(*symbols, [this](const MergeSymbol& l, const MergeSymbol& r, uint32_t* rank,
                                 int32_t* merged) {
    return l.id >= 0 && r.id >= 0 && merges_.find(l.id, r.id, rank, merged);
  });
  for (const MergeSymbol& s : *symbols) {
    if (s.length > 0) append_symbol(s.id, ids);
  }
}

Status BpeTokenizer::encode_fragments(std::string_view text,
                                      std::span<const TextFragment> fragments,
                                      std::vector<int32_t>* ids) const {
  WordCache cache(text.size());
  std::vector<WordRange> words;
  std::vector<MergeSymbol> symbols;
  for (const TextFragment& fragment : fragments) {
    if (fragment.id >= 0) {
      ids->push_back(fragment.id);
      continue;
    }
    const std::string_view piece = text.substr(fragment.begin, fragment.end - fragment.begin);
    CHECK_OK(pre_->split(piece, &words));
    for (const WordRange& range : words) {
      const std::string_view word = piece.substr(range.begin, range.end - range.begin);
      if (cache.append(word, ids)) continue;
      const size_t first_id = ids->size();
      encode_word(word, &symbols, ids);
      cache.remember(word, first_id, *ids);
    }
  }
  return {};
}

}  // namespace

bool bytes_of_spelling(std::string_view spelling, std::string* bytes) {
  const ByteAlphabet& alphabet = byte_alphabet();
  for (size_t i = 0; i < spelling.size();
       i += static_cast<size_t>(utf8_length(static_cast<uint8_t>(spelling[i])))) {
    const uint32_t c = utf8_decode(spelling.data() + i);
    if (c >= alphabet.byte.size() || alphabet.byte[c] < 0) return false;
    bytes->push_back(static_cast<char>(alphabet.byte[c]));
  }
  return true;
}

std::string spelling_of_byte(uint8_t byte) {
  std::string out;
  utf8_append(byte_alphabet().code_point[byte], &out);
  return out;
}

Result<std::unique_ptr<Tokenizer>> create_bpe_tokenizer(Vocabulary vocabulary) {
  CHECK_ASSIGN(auto pre, PreTokenizer::create(vocabulary.pre));
  vocabulary.add_space_prefix = false;  // byte-level vocabularies never had one
  auto made = std::make_unique<BpeTokenizer>(std::move(vocabulary), std::move(pre));
  CHECK_OK(made->build());
  return std::unique_ptr<Tokenizer>(std::move(made));
}

}  // namespace tandem
