// How the attention of a step is cut into pieces: each (token, K/V head, key) in exactly one of them.
#include "cpu/step_plan.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <tuple>

#include "kernels/kernel_table.h"
#include "tests/cpu/tiny_model.h"

namespace tandem {
namespace {

// Items of (first position, tokens).
StepBatch make_batch(const std::vector<std::pair<int, int>>& items) {
  StepBatch batch;
  for (const auto& [first_pos, n] : items) {
    StepItem item;
    item.first_token = static_cast<int>(batch.tokens.size());
    item.n_tokens = n;
    item.first_pos = first_pos;
    batch.tokens.insert(batch.tokens.end(), static_cast<size_t>(n), 0);
    batch.items.push_back(item);
  }
  return batch;
}

int first_part(int pos, int window) {
  return (window > 0 && pos >= window ? pos - window + 1 : 0) / kAttentionPartKeys;
}

}  // namespace

TEST_CASE("pieces cover each token, head and part once") {
  const ModelConfig config = make_tiny_model(TinyKind::kVaried, GgmlType::kQ8_0, 1).config;
  CpuStepPlan plan(config);
  for (const auto& items : {std::vector<std::pair<int, int>>{{5000, 1}},
                            {{0, 1}},
                            {{700, 4}, {20, 1}, {9000, 1}},
                            {{0, 512}},
                            {{3000, 9}},
                            {{3000, 32}, {400, 1}, {400, 1}, {400, 1}},
                            {{2040, 64}},
                            {{100, 40}, {4095, 1}}}) {
    const StepBatch batch = make_batch(items);
    for (int n_threads : {1, 2, 5, 16}) {
      plan.build(batch, n_threads);
      for (size_t g = 0; g < config.kv_groups.size(); ++g) {
        const KvGroup& group = config.kv_groups[g];
        std::map<std::tuple<int, int, int>, int> seen;  // token, head, part
        std::map<int64_t, int> records;  // first float of a row's record of a part
        int64_t cost = 1 << 30;
        for (const AttentionPiece& p : plan.pieces(static_cast<int>(g))) {
          CHECK(p.cost <= cost);
          cost = p.cost;
          for (int t = p.token_begin; t < p.token_end; ++t) {
            const int token = p.item->first_token + t, pos = p.item->first_pos + t;
            const SplitToken& split = plan.split(static_cast<int>(g), token, p.kv_head);
            const int first = first_part(pos, group.window), end = pos / kAttentionPartKeys + 1;
            const bool is_whole = p.part_begin == p.part_end;
            CHECK(is_whole == (split.n_parts == 0));
            // Its neighbours may see a part before its first and one behind its last.
            const int first_of_piece = first_part(p.item->first_pos + p.token_begin, group.window);
            if (!is_whole) CHECK(split.n_parts >= end - first_of_piece);
            for (int part = is_whole ? first : p.part_begin; part < (is_whole ? end : p.part_end); ++part) {
              if (part >= first && part < end) ++seen[{token, p.kv_head, part}];
              if (is_whole) continue;
              CHECK(part - first_of_piece < split.n_parts);
              CHECK(split.stride == p.stride);
              CHECK(split.index == t - p.token_begin);
              const int64_t at = p.records + (part - p.part_begin) * p.stride;
              CHECK(at == split.records + (part - first_of_piece) * split.stride);
              CHECK(at + p.stride <= plan.n_record_floats());
              ++records[at + split.index * (p.stride / (p.token_end - p.token_begin))];
            }
          }
        }
        int expected = 0;
        for (const StepItem& item : batch.items) {
          for (int t = 0; t < item.n_tokens; ++t) {
            const int pos = item.first_pos + t;
            expected += (pos / kAttentionPartKeys + 1 - first_part(pos, group.window)) * group.n_kv_heads;
          }
        }
        CHECK(static_cast<int>(seen.size()) == expected);
        for (const auto& [key, n] : seen) CHECK(n == 1);
        for (const auto& [at, n] : records) CHECK(n == 1);
        const int n_tokens = static_cast<int>(batch.tokens.size());
        CHECK(plan.n_record_floats() <= plan.most_record_floats(n_threads, n_tokens, 9001));
      }
    }
  }
}

TEST_CASE("a decode step far into a context has work for every thread") {
  const ModelConfig config = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1).config;
  CpuStepPlan plan(config);
  plan.build(make_batch({{8191, 1}}), 4);
  int64_t total = 0;
  for (const AttentionPiece& p : plan.pieces(0)) total += p.cost;
  CHECK(plan.pieces(0).size() >= 16);
  CHECK(plan.pieces(0).front().cost * 8 <= total);
  plan.build(make_batch({{8191, 1}}), 1);  // nothing to share: no joining
  CHECK(plan.split(0, 0, 0).n_parts == 0);
}

// What a long prompt beside streams is made of: left whole, the last of three heads would keep one thread waiting.
TEST_CASE("a small chunk far into a context has work for every thread") {
  ModelConfig config = make_tiny_model(TinyKind::kPlain, GgmlType::kQ8_0, 1).config;
  CpuStepPlan plan(config);
  for (int n_threads : {2, 3, 4, 8}) {
    plan.build(make_batch({{400, 1}, {400, 1}, {400, 1}, {6000, 24}}), n_threads);
    std::vector<int64_t> loads(static_cast<size_t>(n_threads), 0);
    int64_t total = 0;
    for (const AttentionPiece& p : plan.pieces(0)) {
      *std::min_element(loads.begin(), loads.end()) += p.cost;
      total += p.cost;
    }
    CAPTURE(n_threads);
    CHECK(*std::max_element(loads.begin(), loads.end()) * n_threads * 9 <= total * 10);
  }
}

}  // namespace tandem
