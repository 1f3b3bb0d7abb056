// Every message there and back, and a decoder that no bytes can hurt.
#include "ipc/codec.h"

#include <catch2/catch.hpp>
#include <random>

namespace tandem::ipc {
namespace {

std::span<const uint8_t> bytes_of(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// Decodes what encode() made, checks that the same alternative comes back and that it encodes to the same
// bytes, and returns it for a look at the fields.
template <typename M>
M round_trip(const M& message) {
  if constexpr (requires { ToWorker(message); }) {
    std::string encoded = encode(ToWorker(message));
    Result<ToWorker> decoded = decode_to_worker(bytes_of(encoded));
    REQUIRE(decoded.ok());
    REQUIRE(std::holds_alternative<M>(*decoded));
    CHECK(encode(*decoded) == encoded);
    return std::get<M>(*decoded);
  } else {
    std::string encoded = encode(FromWorker(message));
    Result<FromWorker> decoded = decode_from_worker(bytes_of(encoded));
    REQUIRE(decoded.ok());
    REQUIRE(std::holds_alternative<M>(*decoded));
    CHECK(encode(*decoded) == encoded);
    return std::get<M>(*decoded);
  }
}

const std::string kBytes("a\0\xff z", 5);

Loan full_loan() { return {1, 2, 3, 4, true, {21, 22}, {{{5, 6}, {-1, 0}}, {{7, 8}}}}; }
bool is_full_loan(const Loan& l) {
  return l.source == 1 && l.generation == 2 && l.first_block == 3 && l.n_tokens == 4 && l.is_whole && l.weight_borders == WeightBorders{21, 22} &&
         l.groups.size() == 2 && l.groups[0].size() == 2 && l.groups[0][1].page == -1 &&
         l.groups[1][0].page == 7 && l.groups[1][0].serial == 8;
}

Submit full_submit() {
  Submit s;
  s.id = 77;
  s.prompt = {1, -2, 3};
  s.choices = {{0, {}, 0}, {2, {5, 6}, 9, {3, 4}}};
  s.sampling = {0.5f, 0.25f, 0.125f, 40, 1.5f, 0.75f, -0.5f, 1ull << 63, {{7, -100.0f}, {8, 2.0f}}, true, 20};
  s.stop = {"\n\n", kBytes};
  s.max_tokens = 12;
  s.prompt_logprobs = true;
  s.n_prompt_logprobs_known = 2;
  s.priority = Priority::kLow;
  s.deadline_us = -5;
  s.waited_us = 6;
  s.loan = full_loan();
  return s;
}

TokenEvents full_events() {
  TokenEvent a{1, 2, 3, 4, kBytes, 5, LogprobEntry{{4, -0.5f, "x"}, {{9, -1.0f, "y"}, {10, -2.0f, kBytes}}},
               FinishReason::kFailed, "why", true};
  TokenEvent b;
  return {{a, b}};
}

}  // namespace

TEST_CASE("messages to the worker keep every field") {
  Configure c = round_trip(
      Configure{3, "[a]\nb = 1\n", {"m1", "m2"}, 9, Role::kDecode, true, true, true, int64_t{1} << 40, {"l1", "l2"}, "gone", true});
  CHECK((c.is_cache_trusted && c.is_cache_shared && c.measures_prompts && c.other_bytes == int64_t{1} << 40));
  CHECK((c.protocol == 3 && c.config_toml == "[a]\nb = 1\n" && c.generation == 9 && c.role == Role::kDecode));
  CHECK(c.model_names == std::vector<std::string>{"m1", "m2"});
  CHECK((c.lean_names == std::vector<std::string>{"l1", "l2"} && c.lean_trouble == "gone" && c.is_lean_cache_trusted));

  Prepare p;
  p.id = 4, p.kind = Prepare::Kind::kChat, p.text = kBytes, p.messages = {{"user", kBytes, "bob"}, {"a", "", ""}};
  p.ids = {1, 2}, p.add_special = false, p.parse_special = true, p.add_generation_prompt = false;
  p.want_prompt_text = true;
  p = round_trip(p);
  CHECK((p.id == 4 && p.kind == Prepare::Kind::kChat && p.text == kBytes && p.ids == std::vector<int32_t>{1, 2}));
  REQUIRE(p.messages.size() == 2);
  CHECK((p.messages[0].role == "user" && p.messages[0].content == kBytes && p.messages[0].name == "bob"));
  CHECK((!p.add_special && p.parse_special && !p.add_generation_prompt && p.want_prompt_text));

  Detokenize d = round_trip(Detokenize{8, {5, 6, 7}});
  CHECK((d.id == 8 && d.ids == std::vector<int32_t>{5, 6, 7}));

  Submit s = round_trip(full_submit());
  CHECK((s.id == 77 && s.prompt == std::vector<int32_t>{1, -2, 3} && s.max_tokens == 12 && s.prompt_logprobs));
  REQUIRE(s.choices.size() == 2);
  CHECK((s.choices[1].choice == 2 && s.choices[1].generated == std::vector<int32_t>{5, 6}));
  CHECK(s.choices[1].bytes_released == 9);
  CHECK((s.sampling.temperature == 0.5f && s.sampling.top_p == 0.25f && s.sampling.min_p == 0.125f));
  CHECK((s.sampling.top_k == 40 && s.sampling.repetition_penalty == 1.5f && s.sampling.presence_penalty == 0.75f));
  CHECK((s.sampling.frequency_penalty == -0.5f && s.sampling.seed == 1ull << 63 && s.sampling.ignore_eos));
  CHECK((s.sampling.n_top_logprobs == 20 && s.sampling.logit_bias.size() == 2));
  CHECK(s.sampling.logit_bias[0] == std::pair<int32_t, float>{7, -100.0f});
  CHECK(s.stop == std::vector<std::string>{"\n\n", kBytes});
  CHECK((s.n_prompt_logprobs_known == 2 && s.priority == Priority::kLow && s.deadline_us == -5));
  CHECK(s.waited_us == 6);
  CHECK((s.choices[0].weight_borders.empty() && s.choices[1].weight_borders == WeightBorders{3, 4}));

  REQUIRE(s.loan.has_value());
  CHECK(is_full_loan(*s.loan));

  Cancel x = round_trip(Cancel{6, FinishReason::kDeadline});
  CHECK((x.id == 6 && x.reason == FinishReason::kDeadline));
  CHECK(round_trip(SetLogLevel{"debug"}).level == "debug");
  round_trip(Shutdown{});
  CHECK(round_trip(SetWeights{true}).is_lean);
  PoolGrant g = round_trip(PoolGrant{5, "no"});
  CHECK((g.bytes == 5 && g.error == "no"));
  Lend lend = round_trip(Lend{3, full_loan(), {9, 8}});
  CHECK((lend.id == 3 && is_full_loan(lend.loan) && lend.tokens == std::vector<int32_t>{9, 8}));
  CHECK(round_trip(Release{12}).id == 12);
}

TEST_CASE("messages from the worker keep every field") {
  Hello h = round_trip(Hello{2, 4321});
  CHECK((h.protocol == 2 && h.pid == 4321));
  Progress g = round_trip(Progress{"repacking weights", 0.5f});
  CHECK((g.phase == "repacking weights" && g.fraction == 0.5f));
  Fatal f = round_trip(Fatal{78, "why"});
  CHECK((f.exit_code == 78 && f.message == "why"));

  WeightsCacheDone done = round_trip(WeightsCacheDone{true, true, "torn", true});
  CHECK((done.is_stored && done.is_whole && done.damage == "torn" && done.is_lean));

  ModelInfo m{"n", "llama", "Q4_1", "cpu", "avx2", 1, 2, 3, 4, 5, 3, "card", 17, 18, true, "bad", 6, 7, 8, 80, 9, 10,
              {11, 12, 13, 14, 15, 16, true, 21}, 19, 20, 1.5, 0.5, 2.5, 3.5, "no lean", "lean file"};
  m = round_trip(Ready{m}).model;
  CHECK((m.name == "n" && m.architecture == "llama" && m.quantization == "Q4_1" && m.device == "cpu"));
  CHECK((m.isa == "avx2" && m.n_parameters == 1 && m.file_bytes == 2 && m.context_tokens == 3));
  CHECK((m.vocab_size == 4 && m.n_layers == 5 && m.device_layers == 3 && m.device_name == "card" && m.prompt_fixed_us == 17 && m.prompt_token_ns == 18 && m.has_chat_template && m.chat_template_error == "bad"));
  CHECK((m.pool_tokens == 6 && m.kv_bytes_per_token == 7 && m.kv_pool_bytes == 8 && m.swap_pool_bytes == 80 && m.weight_bytes == 9));
  CHECK(m.max_batch_size == 10);
  CHECK((m.memory.weights_bytes == 11 && m.memory.kv_pool_bytes == 12 && m.memory.scratch_bytes == 13));
  CHECK((m.memory.process_bytes == 14 && m.memory.other_bytes == 15 && m.memory.budget_bytes == 16));
  CHECK((m.memory.is_configured && m.memory.lean_bytes == 21));
  CHECK((m.full_set_bytes == 19 && m.lean_set_bytes == 20 && m.full_step_ms == 1.5 && m.lean_step_ms == 0.5));
  CHECK((m.full_perplexity == 2.5 && m.lean_perplexity == 3.5));
  CHECK((m.no_lean_reason == "no lean" && m.lean_file == "lean file"));

  PrepareReply p = round_trip(PrepareReply{1, true, "e", "c", {4, 5}, kBytes});
  CHECK((p.id == 1 && p.ok && p.error == "e" && p.error_code == "c" && p.prompt_text == kBytes));
  CHECK(p.ids == std::vector<int32_t>{4, 5});
  DetokenizeReply d = round_trip(DetokenizeReply{2, true, "e", kBytes});
  CHECK((d.id == 2 && d.ok && d.error == "e" && d.text == kBytes));

  PromptLogprobs l = round_trip(PromptLogprobs{3, 4, {{{1, -1.0f, "a"}, {{2, -2.0f, "b"}}}}});
  CHECK((l.id == 3 && l.first_index == 4 && l.entries.size() == 1 && l.entries[0].top.size() == 1));
  CHECK((l.entries[0].chosen.bytes == "a" && l.entries[0].top[0].logprob == -2.0f));

  TokenEvents e = round_trip(full_events());
  REQUIRE(e.events.size() == 2);
  const TokenEvent& a = e.events[0];
  CHECK((a.id == 1 && a.choice == 2 && a.index == 3 && a.token == 4 && a.text == kBytes && a.n_released == 5));
  CHECK((a.finish == FinishReason::kFailed && a.error == "why" && a.logprob.has_value()));
  CHECK((a.logprob->top.size() == 2 && a.logprob->top[1].bytes == kBytes && a.logprob->chosen.logprob == -0.5f));
  CHECK((e.events[1].token == -1 && !e.events[1].logprob.has_value() && a.is_lean && !e.events[1].is_lean));

  PromptProgress q = round_trip(PromptProgress{1, 2, 3, 4, {5}});
  CHECK((q.id == 1 && q.n_done == 2 && q.n_total == 3 && q.n_cached == 4 && q.weight_borders == WeightBorders{5}));
  Heartbeat b = round_trip(Heartbeat{1, 2, 3, 4, 5, 50, 6, 7, 8, 9, 10, 100, 60, 0.5, 0.25, 0.125, 11, 12, 13, 14, 15, 1.5, 16});
  CHECK((b.engine_turns == 1 && b.steps == 2 && b.prompt_tokens == 3 && b.generated_tokens == 4));
  CHECK((b.preemptions == 5 && b.n_running == 6 && b.n_waiting == 7 && b.pages_used == 8 && b.pages_free == 9));
  CHECK((b.swaps == 50 && b.pages_swapped == 100 && b.batch_limit == 60));
  CHECK((b.pages_shared == 10 && b.prefill_seconds == 0.5 && b.decode_seconds == 0.25));
  CHECK((b.sampling_seconds == 0.125 && b.last_batch == 11 && b.computed_tokens == 12));
  CHECK((b.pages_readopted == 13 && b.pages_imported == 14 && b.bytes_imported == 15));
  CHECK((b.import_seconds == 1.5 && b.pages_lent == 16));
  CHECK(round_trip(PoolRequest{6}).bytes == 6);
  Lent lent = round_trip(Lent{2, full_loan()});
  CHECK((lent.id == 2 && is_full_loan(lent.loan)));
  CHECK(round_trip(ImportDone{4}).id == 4);
  Returned r = round_trip(Returned{5, true, "why"});
  CHECK((r.id == 5 && r.is_preempted && r.reason == "why"));
}

TEST_CASE("every shortened message is refused, and so is every lengthened one") {
  for (const std::string& whole : {encode(ToWorker(full_submit())), encode(FromWorker(full_events()))}) {
    bool to_worker = decode_to_worker(bytes_of(whole)).ok();
    for (size_t n = 0; n < whole.size(); ++n) {
      std::string part = whole.substr(0, n);
      if (to_worker) {
        CHECK_FALSE(decode_to_worker(bytes_of(part)).ok());
      } else {
        CHECK_FALSE(decode_from_worker(bytes_of(part)).ok());
      }
    }
    CHECK_FALSE((to_worker ? decode_to_worker(bytes_of(whole + '\0')).ok()
                           : decode_from_worker(bytes_of(whole + '\0')).ok()));
  }
}

TEST_CASE("the decoder names what is wrong") {
  Result<ToWorker> unknown = decode_to_worker(bytes_of(std::string(1, '\x63')));
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.status().code() == StatusCode::kDataLoss);
  CHECK(unknown.status().message().find("kind 99 is unknown, allowed 0 to 10") != std::string::npos);

  std::string configure = encode(ToWorker(Configure{}));
  configure.back() = 3;  // one past the last Role
  CHECK_FALSE(decode_to_worker(bytes_of(configure)).ok());

  std::string cancel = encode(ToWorker(Cancel{6, FinishReason::kFailed}));
  cancel.back() = 7;  // one past the last FinishReason
  CHECK_FALSE(decode_to_worker(bytes_of(cancel)).ok());

  Prepare p;
  std::string prepare = encode(ToWorker(p));
  prepare.back() = 2;  // a bool
  CHECK_FALSE(decode_to_worker(bytes_of(prepare)).ok());
}

TEST_CASE("a count that the bytes cannot hold is refused before anything is allocated") {
  std::string detokenize = encode(ToWorker(Detokenize{1, {}}));
  for (size_t i = detokenize.size() - 4; i < detokenize.size(); ++i) detokenize[i] = '\xff';
  CHECK_FALSE(decode_to_worker(bytes_of(detokenize)).ok());  // 16 GiB of ids would not pass unnoticed
  std::string events = encode(FromWorker(TokenEvents{}));
  for (size_t i = events.size() - 4; i < events.size(); ++i) events[i] = '\xff';
  CHECK_FALSE(decode_from_worker(bytes_of(events)).ok());
}

TEST_CASE("random and mutated bytes never hurt, and what decodes encodes to itself") {
  std::mt19937 rng(7);
  std::string seeds[] = {encode(ToWorker(full_submit())), encode(FromWorker(full_events()))};
  int n_decoded = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string bytes;
    if (round % 2 == 0) {
      bytes.resize(rng() % 64);
      for (char& c : bytes) c = static_cast<char>(rng() % 4 == 0 ? rng() : rng() % 8);
    } else {
      bytes = seeds[rng() % 2];
      for (int i = static_cast<int>(rng() % 4); i >= 0; --i) bytes[rng() % bytes.size()] = static_cast<char>(rng());
    }
    if (Result<ToWorker> m = decode_to_worker(bytes_of(bytes)); m.ok()) {
      ++n_decoded;
      if (encode(*m) != bytes) FAIL("to worker, round " << round);
    }
    if (Result<FromWorker> m = decode_from_worker(bytes_of(bytes)); m.ok()) {
      ++n_decoded;
      if (encode(*m) != bytes) FAIL("from worker, round " << round);
    }
  }
  CHECK(n_decoded > 1000);  // the property was not vacuous
}

}  // namespace tandem::ipc
