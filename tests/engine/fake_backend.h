// A model whose next token is a hash of the tokens it sees, and of the set of weights that computed each. It keeps
// tokens, positions and sets in fake pages and
// reads them back through the page tables, so a wrong table, a page with two owners or a page freed too early
// shows as another text than fake_text() computes from the tokens alone.
#pragma once

#include <string>

#include "engine/request.h"
#include "model/backend.h"

namespace tandem {

constexpr int kFakeVocab = 60;
constexpr int32_t kFakeEndToken = 0;
constexpr int32_t kFakeNanToken = 59;  // in sight: the logits are not finite; never drawn

struct FakeModel {
  int window = 24;  // of the second KV group; the first sees everything
  int page_size = 4;
};

class FakeBackend : public Backend {
 public:
  explicit FakeBackend(FakeModel model);
  const ModelConfig& config() const override { return config_; }
  std::vector<int64_t> page_bytes() const override;
  WeightBytes weight_bytes() const override { return {2, 1}; }
  Status reserve_pages(const std::vector<int>& n_pages) override;
  Status place_pages(const std::vector<int>& n_pages, const std::vector<uint8_t*>& memory) override;
  Status forward(const StepBatch& batch) override;
  std::span<const float> logits(int) override { return {}; }
  Status sample(std::span<const SampleRequest> requests, std::span<SampleResult> results) override;
  Status copy_pages(std::span<const PageCopy> copies) override;
  std::string description() const override { return "fake"; }

  std::string fault;       // first broken rule, "" if none
  Status next_forward;     // answered by the next forward
  int n_copies = 0;
  int64_t n_tokens_run = 0;
  int64_t n_steps_of[2] = {0, 0};  // by set of weights
  int max_tokens_seen = 0, max_items_seen = 0;
  StepBatch last_batch;    // page_tables are dangling

 private:
  struct Cell {
    int32_t token = -1, pos = -1;
    WeightSet set = WeightSet::kFull;
  };
  void check_owners(const StepBatch& batch);
  void blame(const std::string& what) { if (fault.empty()) fault = what; }

  FakeModel model_;
  ModelConfig config_;
  std::vector<std::vector<Cell>> own_cells_;  // of reserve_pages()
  std::vector<std::span<Cell>> cells_;        //      // per group: page * page_size + slot
  std::vector<std::vector<int>> writer_;      // per group and page: item that writes it in this step, + 1
  std::vector<uint64_t> row_hash_;
  std::vector<bool> row_is_nan_;
};

// Tokens that one choice must get if `weights` computed its positions (the full set those that are not recorded), end token excluded, and how it ends by itself.
struct FakeText {
  std::vector<int32_t> tokens;
  SequenceEnd end = SequenceEnd::kNone;
};
FakeText fake_text(const FakeModel& model, const EngineRequest& request, uint32_t choice, int limit,
                   int context, const WeightSpans& weights = {});
// Log-probability that the fake model gives to prompt token `pos`.
float fake_prompt_logprob(const FakeModel& model, const std::vector<int32_t>& prompt, int pos,
                          const WeightSpans& weights = {});

}  // namespace tandem
