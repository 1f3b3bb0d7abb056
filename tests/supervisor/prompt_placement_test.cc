// Which prompts go to the device, and that it stays so.
#include <catch2/catch.hpp>
#include <fstream>

#include "supervisor/prompt_placement.h"
#include "tests/temp_folder.h"

namespace tandem {
namespace {

struct FakeLink : WorkerLink {
  ipc::Role own_role;
  WorkerState own_state = WorkerState::kReady;
  std::optional<ipc::ModelInfo> info{ipc::ModelInfo{}};
  std::string none;
  explicit FakeLink(ipc::Role r) : own_role(r) {}
  ipc::Role role() const override { return own_role; }
  WorkerState state() const override { return own_state; }
  const std::string& cause() const override { return none; }
  const std::optional<ipc::ModelInfo>& model() const override { return info; }
  uint64_t generation() const override { return 1; }
  bool send(const ipc::ToWorker&) override { return true; }
  void note_dispatch() override {}
  void note_progress() override {}
  void protocol_fault(const std::string&) override {}
};

// A processor that takes 1 ms and 10 us a token, a device that takes 2 ms and 5 us a token: even at 200 tokens.
struct Pair {
  FakeLink prefill{ipc::Role::kPrefill}, decode{ipc::Role::kDecode};
  Pair() {
    prefill.info->device = "cpu", prefill.info->isa = "avx2";
    prefill.info->prompt_fixed_us = 1000, prefill.info->prompt_token_ns = 10'000;
    decode.info->device = "gpu", decode.info->isa = "sm_89", decode.info->device_name = "a card";
    decode.info->prompt_fixed_us = 2000, decode.info->prompt_token_ns = 5'000;
    decode.info->context_tokens = 4096;
  }
  void turn(PromptPlacement* p, const std::string& stamp = "model 1") {
    WorkerLink* links[] = {&prefill, &decode};
    p->turn(links, [&] { return stamp; });
  }
};

bool is(const PromptRange& r, int64_t from, int64_t to) { return r.from == from && r.to == to; }
bool is_none(const PromptRange& r) { return r.from > r.to; }

}  // namespace

TEST_CASE("the device gets the lengths for which its line is the lower one") {
  CHECK(is(faster_on_device({1000, 10'000}, {2000, 5'000}, 4096), 200, 4096));
  CHECK(is(faster_on_device({1000, 10'000}, {2001, 5'000}, 4096), 201, 4096));
  CHECK(is(faster_on_device({2000, 5'000}, {1000, 10'000}, 4096), 1, 200));
  CHECK(is(faster_on_device({2000, 5'000}, {1000, 10'000}, 100), 1, 100));
  CHECK(is(faster_on_device({1000, 10'000}, {500, 5'000}, 4096), 1, 4096));
  CHECK(is(faster_on_device({1000, 10'000}, {1000, 10'000}, 4096), 1, 4096));
  CHECK(is_none(faster_on_device({1000, 10'000}, {1001, 10'000}, 4096)));
  CHECK(is_none(faster_on_device({1000, 10'000}, {1001, 20'000}, 4096)));
  CHECK(is_none(faster_on_device({1000, 10'000}, {60'000, 5'000}, 4096)));  // even at 11800 tokens
}

TEST_CASE("it is measured once, kept, and the same after every start") {
  testing::TempFolder folder;
  Pair pair;
  {
    PromptPlacement p(folder.path);
    CHECK(p.wants_measurement("model 1"));
    CHECK(!p.is_for_device(300));
    pair.decode.own_state = WorkerState::kLoading;
    pair.turn(&p);
    CHECK(!p.range());
    pair.decode.own_state = WorkerState::kReady;
    pair.turn(&p);
    REQUIRE(p.range());
    CHECK((is(*p.range(), 200, 4096) && p.is_for_device(200) && !p.is_for_device(199)));
    CHECK(!p.wants_measurement("model 1"));
    CHECK(p.wants_measurement("model 2"));
    pair.decode.info->prompt_token_ns = 9'000;  // another day
    pair.turn(&p);
    CHECK(is(*p.range(), 200, 4096));
  }
  pair.prefill.info->prompt_token_ns = pair.decode.info->prompt_token_ns = 0;  // not asked to
  PromptPlacement next(folder.path);
  pair.turn(&next);
  REQUIRE(next.range());
  CHECK(is(*next.range(), 200, 4096));
}

TEST_CASE("what was measured on other places is measured anew, by the next start") {
  testing::TempFolder folder;
  Pair pair;
  PromptPlacement first(folder.path);
  pair.turn(&first);
  pair.decode.info->device_name = "another card";
  const auto measured = pair.decode.info->prompt_token_ns;
  pair.decode.info->prompt_token_ns = 0;
  PromptPlacement second(folder.path);
  pair.turn(&second);
  REQUIRE(second.range());
  CHECK(is_none(*second.range()));
  CHECK(second.wants_measurement("model 1"));
  pair.decode.info->prompt_token_ns = measured;
  PromptPlacement third(folder.path);
  pair.turn(&third);
  CHECK(is(*third.range(), 200, 4096));
}

TEST_CASE("a damaged file, none that can be written, and a device that is given up") {
  testing::TempFolder folder;
  std::ofstream(folder.path + "/prompt_placement") << "nonsense\n" << std::string(5000, 'x') << "\n0 1 2\n";
  Pair pair;
  PromptPlacement p(folder.path);
  CHECK(p.wants_measurement("model 1"));
  pair.turn(&p);
  CHECK(is(*p.range(), 200, 4096));
  CHECK(!PromptPlacement(folder.path).wants_measurement("model 1"));

  PromptPlacement nowhere("/nonexistent");
  pair.turn(&nowhere);
  CHECK(is(*nowhere.range(), 200, 4096));
  CHECK(nowhere.wants_measurement("model 1"));

  pair.decode.info->device = "cpu";
  PromptPlacement without(folder.path);
  pair.turn(&without);
  CHECK(!without.range());

  PromptPlacement off("");
  CHECK((!off.is_on() && !off.wants_measurement("model 1")));
}

}  // namespace tandem
