// Merging, cutting and special tokens against plain restatements of their definitions.
#include "tokenizer/merge.h"

#include <algorithm>
#include <map>
#include <random>

#include "small_vocabulary.h"
#include "tokenizer/special_matcher.h"

namespace tandem {

namespace {

using Pair = std::pair<int32_t, int32_t>;
struct Merge {
  uint32_t rank;
  int32_t merged;
};

std::vector<int32_t> merge_naively(std::vector<int32_t> ids, const std::map<Pair, Merge>& merges) {
  for (;;) {
    size_t best = ids.size();
    uint32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found != merges.end() && found->second.rank < best_rank)
        best = i, best_rank = found->second.rank;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges.at({ids[best], ids[best + 1]}).merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

template <typename Queue>
std::vector<int32_t> merge_queued(const std::vector<int32_t>& ids,
                                  const std::map<Pair, Merge>& merges) {
  std::vector<MergeSymbol> symbols(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    symbols[i] = {ids[i], static_cast<uint32_t>(i), 1, at - 1, i + 1 < ids.size() ? at + 1 : -1};
  }
  Queue queue;
  merge_with(symbols, queue,
             [&](const MergeSymbol& l, const MergeSymbol& r, uint32_t* rank, int32_t* merged) {
               const auto found = merges.find({l.id, r.id});
               if (found == merges.end()) return false;
               *rank = found->second.rank;
               *merged = found->second.merged;
               return true;
             });
  std::vector<int32_t> out;
  for (const MergeSymbol& s : symbols) {
    if (s.length > 0) out.push_back(s.id);
  }
  return out;
}

}  // namespace

TEST_CASE("both queues merge as the definition says") {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::map<Pair, Merge> merges;  // ranks repeat, as scores may
    for (int32_t k = 0; k < 40; ++k) {
      const Pair pair{static_cast<int32_t>(random() % static_cast<unsigned>(3 + k)),
                      static_cast<int32_t>(random() % static_cast<unsigned>(3 + k))};
      merges.try_emplace(pair, Merge{static_cast<uint32_t>(random() % 25), 3 + k});
    }
    std::vector<int32_t> ids(random() % 80);
    for (auto& id : ids) id = static_cast<int32_t>(random() % 3);
    const auto expected = merge_naively(ids, merges);
    REQUIRE(merge_queued<HeapQueue>(ids, merges) == expected);
    REQUIRE(merge_queued<BucketQueue>(ids, merges) == expected);
  }
}

TEST_CASE("special tokens are claimed as by one pass a token, longest first") {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    Vocabulary v;
    for (size_t n = 1 + random() % 6; n > 0; --n) {
      std::string token;
      for (size_t k = 1 + random() % 4; k > 0; --k) token += static_cast<char>('a' + random() % 2);
      // Equal lengths have no order among them in the definition: keep one token a length.
      const auto same_length = [&](const std::string& t) { return t.size() == token.size(); };
      if (std::any_of(v.tokens.begin(), v.tokens.end(), same_length)) continue;
      v.tokens.push_back(token);
      v.types.push_back(random() % 2 ? kTokenControl : kTokenUserDefined);
    }
    std::string text;
    for (size_t n = random() % 40; n > 0; --n) text += static_cast<char>('a' + random() % 3);
    const size_t cut = random() % (text.size() + 1);
    const TextRange trusted{cut, text.size()};

    std::vector<int32_t> owner(text.size(), -1);  // by byte: id * 1000 + begin
    std::vector<size_t> order(v.tokens.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return v.tokens[a].size() > v.tokens[b].size(); });
    for (size_t i : order) {
      const std::string& token = v.tokens[i];
      for (size_t at = 0; at + token.size() <= text.size(); ++at) {
        if (text.compare(at, token.size(), token) != 0) continue;
        if (v.types[i] == kTokenControl && at < cut) continue;
        const auto taken = std::span(owner).subspan(at, token.size());
        if (std::any_of(taken.begin(), taken.end(), [](int32_t o) { return o >= 0; })) continue;
        std::fill(taken.begin(), taken.end(), static_cast<int32_t>(i * 1000 + at));
      }
    }
    std::vector<TextFragment> fragments;
    SpecialMatcher(v).split(text, std::span(&trusted, 1), &fragments);
    std::vector<int32_t> found(text.size(), -2);
    size_t at = 0;
    for (const TextFragment& f : fragments) {
      REQUIRE(f.begin == at);
      REQUIRE(f.end > f.begin);
      at = f.end;
      std::fill(found.begin() + static_cast<std::ptrdiff_t>(f.begin),
                found.begin() + static_cast<std::ptrdiff_t>(f.end),
                f.id < 0 ? -1 : f.id * 1000 + static_cast<int32_t>(f.begin));
    }
    REQUIRE(at == text.size());
    REQUIRE(found == owner);
  }
}

}  // namespace tandem
