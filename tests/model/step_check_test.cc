// Each way in which a step can be wrong, and a step that is right.
#include "model/step_check.h"

#include <catch2/catch.hpp>

using namespace tandem;

namespace {

// Two KV groups, the second with a window of 20; pages of 16, 4 of them in each group.
struct Step {
  ModelConfig config;
  StepLimits limits;
  std::vector<PageId> full{0, 1, 2}, windowed{-1, 1, 2};
  StepBatch batch;
  Step() {
    config.vocab_size = 10;
    KvGroup group;
    config.kv_groups = {group, group};
    config.kv_groups[1].window = 20;
    limits.n_pages = [](int) { return 4; };
    batch.tokens = {1, 2, 3};
    batch.items = {{40, 0, 2, {full.data(), windowed.data()}, false}, {35, 2, 1, {full.data(), windowed.data()}, true}};
    batch.logit_rows = {1, 2};
  }
  std::string fault() const {
    const Status status = check_step(batch, config, limits);
    CHECK((status.ok() || status.code() == StatusCode::kInvalidArgument));
    return status.message();
  }
};

}  // namespace

TEST_CASE("a step that is right; pages that have left a window are not looked at") { CHECK(Step().fault().empty()); }

TEST_CASE("each way in which a step can be wrong is named with what was found and allowed") {
  Step s;
  SECTION("nothing") { s.batch.tokens.clear(); CHECK(s.fault() == "step: no tokens"); }
  SECTION("token") { s.batch.tokens[1] = 10; CHECK(s.fault() == "step: token id 10 is not in [0, 10)"); }
  SECTION("negative token") { s.batch.tokens[1] = -1; CHECK(s.fault() == "step: token id -1 is not in [0, 10)"); }
  SECTION("lean") { s.batch.weights = WeightSet::kLean; CHECK(s.fault() == "step: these weights have no lean set"); }
  SECTION("lean, and there") { s.batch.weights = WeightSet::kLean, s.limits.has_lean_set = true; CHECK(s.fault().empty()); }
  SECTION("activations needed") { s.limits.takes_hidden = true; CHECK(s.fault() == "step: the activations of the layer before are needed"); }
  SECTION("activations not taken") {
    const float x = 0;
    s.batch.hidden = &x;
    CHECK(s.fault() == "step: activations of a layer before are not taken by the model's first");
  }
  SECTION("gap") { s.batch.items[1].first_token = 1; CHECK(s.fault() == "step: item of 1 tokens from 1 at position 35 does not follow 2"); }
  SECTION("empty item") { s.batch.items[0].n_tokens = 0; CHECK(s.fault() == "step: item of 0 tokens from 0 at position 40 does not follow 0"); }
  SECTION("position") { s.batch.items[0].first_pos = -1; CHECK(s.fault() == "step: item of 2 tokens from 0 at position -1 does not follow 0"); }
  SECTION("context") { s.limits.context_tokens = 41; CHECK(s.fault() == "step: item of 2 tokens at position 40 leaves the context of 41"); }
  SECTION("context, the last place") { s.limits.context_tokens = 42; CHECK(s.fault().empty()); }
  SECTION("tables") { s.batch.items[0].page_tables.pop_back(); CHECK(s.fault() == "step: one page table per KV group is needed"); }
  SECTION("page") { s.full[2] = 4; CHECK(s.fault() == "step: page 2 of group 0 is 4, not in [0, 4)"); }
  SECTION("page in the window") { s.windowed[1] = -1; CHECK(s.fault() == "step: page 1 of group 1 is -1, not in [0, 4)"); }
  SECTION("too few items") { s.batch.items.pop_back(); CHECK(s.fault() == "step: items do not cover the tokens"); }
  SECTION("logit row") { s.batch.logit_rows = {3}; CHECK(s.fault() == "step: logit row 3 is not ascending in [0, 3)"); }
  SECTION("logit rows") { s.batch.logit_rows = {1, 1}; CHECK(s.fault() == "step: logit row 1 is not ascending in [0, 3)"); }
}
