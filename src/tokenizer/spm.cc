// DESIGN: the algorithm has no words: any two neighbouring symbols of the text may merge if
// together they spell a token. Where no token holds two given characters side by side, no merge can
// ever cross between them, so the text is cut there and the segments are encoded alone (and
// remembered, as words are). That is exact, and in real vocabularies it cuts before almost every
// blank. A blank is U+2581 in tokens. Here both sides use ' ' instead, so that text needs no copy:
// no token that text can become contains a real ' '.
#include "tokenizer/spm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>

#include "tokenizer/merge.h"
#include "tokenizer/utf8.h"
#include "tokenizer/vocabulary_check.h"
#include "tokenizer/word_cache.h"

namespace tandem {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != std::string_view::npos; at = hit + from.size()) {
    out.append(text.substr(at, hit - at)).append(to);
  }
  return out.append(text.substr(at));
}

// Text -> token, open addressing over strings that the owner keeps.
class TextTable {
 public:
  void reserve(size_t n) { slots_.resize(std::bit_ceil(n * 2 + 2)); }
  void insert(std::string_view text, int32_t id) {
    slots_[find_slot(text)] = {text, id};
    longest_ = std::max(longest_, text.size());
  }
  int32_t find(std::string_view text) const {
    return text.size() > longest_ ? -1 : slots_[find_slot(text)].id;
  }

 private:
  struct Slot {
    std::string_view text;
    int32_t id = -1;
  };
  size_t find_slot(std::string_view text) const {
    size_t i = hash_bytes(text) & (slots_.size() - 1);
    while (slots_[i].id >= 0 && slots_[i].text != text) i = (i + 1) & (slots_.size() - 1);
    return i;
  }
  std::vector<Slot> slots_;
  size_t longest_ = 0;
};

// Whether two characters ever stand side by side inside a token. May say yes wrongly (then a
// segment is longer than need be), never no.
class NeighbourSet {
 public:
  NeighbourSet() : bits_(kBits / 64) {}
  void add(uint32_t left, uint32_t right) {
    bits_[index(left, right) / 64] |= uint64_t{1} << index(left, right) % 64;
  }
  bool may_hold(uint32_t left, uint32_t right) const {
    return bits_[index(left, right) / 64] >> index(left, right) % 64 & 1;
  }

 private:
  static constexpr size_t kBits = size_t{1} << 22;  // 512 KiB; gemma3's pairs fill a few percent
  static size_t index(uint32_t left, uint32_t right) {
    if ((left | right) < 128) return left << 7 | right;
    const uint64_t mixed = (uint64_t{left} << 21 | right) * 0x9E3779B97F4A7C15ull;
    return static_cast<size_t>(mixed >> 42);
  }
  std::vector<uint64_t> bits_;
};

class SpmTokenizer final : public Tokenizer {
 public:
  explicit SpmTokenizer(Vocabulary vocabulary) : Tokenizer(std::move(vocabulary)) {}
  Status build();

 protected:
  Status encode_fragments(std::string_view text, std::span<const TextFragment> fragments,
                          std::vector<int32_t>* ids) const override;
  std::string spelled_bytes(int32_t id) const override {
    const std::string& token = vocabulary_.tokens[static_cast<size_t>(id)];
    if (type(id) == kTokenByte) return std::string(1, static_cast<char>(byte_token_value(token)));
    return type(id) == kTokenUnused ? token : replace_all(token, kSpaceMark, " ");
  }

 private:
  int32_t type(int32_t id) const {
    return vocabulary_.types.empty() ? static_cast<int32_t>(kTokenNormal)
                                     : vocabulary_.types[static_cast<size_t>(id)];
  }
  void rank_scores();
  Status encode_text(std::string_view text, WordCache* cache, std::vector<int32_t>* ids) const;
  Status encode_segment(std::string_view segment, std::vector<MergeSymbol>* symbols,
                        std::vector<int32_t>* ids) const;
  Status append_bytes(std::string_view text, std::vector<int32_t>* ids) const;

  std::vector<std::string>
      texts_;  // of tokens that text can become, with ' ' for U+2581; else empty
  TextTable table_;
  NeighbourSet neighbours_;
  std::vector<uint32_t> ranks_;  // by id: 0 for the highest score; equal scores, equal ranks
  std::array<int32_t, 256> byte_ids_{};
};

void SpmTokenizer::rank_scores() {
  std::vector<float> scores = vocabulary_.scores;
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  ranks_.resize(vocabulary_.scores.size());
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const auto at =
        std::lower_bound(scores.begin(), scores.end(), vocabulary_.scores[i], std::greater<>());
    ranks_[i] = static_cast<uint32_t>(at - scores.begin());
  }
}

Status SpmTokenizer::build() {
  const size_t n = vocabulary_.tokens.size();
  rank_scores();
  byte_ids_.fill(-1);
  texts_.resize(n);
  table_.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& token = vocabulary_.tokens[i];
    if (type(id) == kTokenByte) byte_ids_[static_cast<size_t>(byte_token_value(token))] = id;
    if (type(id) != kTokenNormal && type(id) != kTokenUnused) continue;
    if (token.empty() || token.find(' ') != std::string::npos) continue;
    texts_[i] = replace_all(token, kSpaceMark, " ");
    table_.insert(texts_[i], id);
    uint32_t left = 0;
    for (size_t at = 0; at < texts_[i].size();
         at += static_cast<size_t>(utf8_length(static_cast<uint8_t>(texts_[i][at])))) {
      const uint32_t right = utf8_decode(texts_[i].data() + at);
      if (at > 0) neighbours_.add(left, right);
      left = right;
    }
  }
  return {};
}

Status SpmTokenizer::append_bytes(std::string_view text, std::vector<int32_t>* ids) const {
  if (text == " ") text = kSpaceMark;
  for (char c : text) {
    int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id < 0) id = table_.find(std::string_view(&c, 1));
    if (id < 0) id = vocabulary_.unknown;
    if (id < 0) {
      return invalid_argument(
          fmt::format("the text holds the byte 0x{:02X}, which the model's vocabulary cannot spell",
                      static_cast<uint8_t>(c)));
    }
    ids->push_back(id);
  }
  return {};
}

Status SpmTokenizer::encode_segment(std::string_view segment, std::vector<MergeSymbol>* symbols,
                                    std::vector<int32_t>* ids) const {
  symbols->clear();
  for (uint32_t at = 0; at < segment.size();) {
    const auto length = static_cast<uint32_t>(utf8_length(static_cast<uint8_t>(segment[at])));
    const auto i = static_cast<int32_t>(symbols->size());
    symbols->push_back({table_.find(segment.substr(at, length)), at, length, i - 1, i + 1});
    at += length;
  }
  symbols->back().next = -1;
  merge_symbols(*symbols,
                [&](const MergeSymbol& l, const MergeSymbol& r, uint32_t* rank, int32_t* merged) {
                  *merged = table_.find(segment.substr(l.begin, l.length + r.length));
                  if (*merged < 0) return false;
                  *rank = ranks_[static_cast<size_t>(*merged)];
                  return true;
                });
  for (const MergeSymbol& s : *symbols) {
    if (s.length == 0) continue;
    if (s.id >= 0) {
      ids->push_back(s.id);
    } else {
      CHECK_OK(append_bytes(segment.substr(s.begin, s.length), ids));
    }
  }
  return {};
}

// text: valid UTF-8 with ' ' for U+2581; lives until the end of the call to encode_fragments.
Status SpmTokenizer::encode_text(std::string_view text, WordCache* cache,
                                 std::vector<int32_t>* ids) const {
  std::vector<MergeSymbol> symbols;
  size_t begin = 0;
  while (begin < text.size()) {
    uint32_t left = utf8_decode(text.data() + begin);
    size_t end = begin + static_cast<size_t>(utf8_length(static_cast<uint8_t>(text[begin])));
    while (end < text.size()) {
      const uint32_t right = utf8_decode(text.data() + end);
      if (!neighbours_.may_hold(left, right)) break;
      end += static_cast<size_t>(utf8_length(static_cast<uint8_t>(text[end])));
      left = right;
    }
    const std::string_view segment = text.substr(begin, end - begin);
    begin = end;
    if (cache->append(segment, ids)) continue;
    const size_t first_id = ids->size();
    CHECK_OK(encode_segment(segment, &symbols, ids));
    cache->remember(segment, first_id, *ids);
  }
  return {};
}

Status SpmTokenizer::encode_fragments(std::string_view text,
                                      std::span<const TextFragment> fragments,
                                      std::vector<int32_t>* ids) const {
  WordCache cache(text.size());
  std::deque<std::string>
      copies;  // fragments that could not be read in place; the cache looks at them
  bool after_special = true;
  for (const TextFragment& fragment : fragments) {
    if (fragment.id >= 0) {
      ids->push_back(fragment.id);
      after_special = true;
      continue;
    }
    std::string_view piece = text.substr(fragment.begin, fragment.end - fragment.begin);
    const bool prefix = after_special && vocabulary_.add_space_prefix;
    if (prefix || piece.find(kSpaceMark) != std::string_view::npos) {
      copies.push_back((prefix ? " " : "") + replace_all(piece, kSpaceMark, " "));
      piece = copies.back();
    }
    CHECK_OK(encode_text(piece, &cache, ids));
    after_special = false;
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> create_spm_tokenizer(Vocabulary vocabulary) {
  auto made = std::make_unique<SpmTokenizer>(std::move(vocabulary));
  CHECK_OK(made->build());
  return std::unique_ptr<Tokenizer>(std::move(made));
}

}  // namespace tandem
