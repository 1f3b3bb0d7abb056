#include "worker/request_streams.h"

#include <catch2/catch.hpp>

#include "tests/tokenizer/small_vocabulary.h"

namespace tandem {
namespace {

using ipc::FinishReason;

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> t = make(bpe_vocabulary());
  return *t;
}
int32_t letter(char c) { return 5 + static_cast<unsigned char>(c); }

ipc::Submit submit(uint64_t id, std::vector<std::string> stop = {}) {
  ipc::Submit s;
  s.id = id;
  s.prompt = {letter('p'), letter('q')};
  s.choices = {{0, {}, 0}};
  s.stop = std::move(stop);
  s.max_tokens = 10;
  return s;
}
EngineToken token(uint64_t id, uint32_t index, int32_t value, SequenceEnd end = SequenceEnd::kNone, uint32_t choice = 0) {
  EngineToken t;
  t.id = id, t.choice = choice, t.index = index, t.token = value, t.end = end;
  return t;
}
std::vector<ipc::TokenEvent> events_of(const RequestStreams::Output& output) {
  std::vector<ipc::TokenEvent> all;
  for (const ipc::FromWorker& m : output.messages) {
    if (const auto* events = std::get_if<ipc::TokenEvents>(&m)) all.insert(all.end(), events->events.begin(), events->events.end());
  }
  return all;
}
RequestStreams::Output translate(RequestStreams& streams, std::vector<EngineToken> tokens) {
  RequestStreams::Output output;
  EngineEvents events;
  events.tokens = std::move(tokens);
  streams.translate(std::move(events), &output);
  return output;
}

}  // namespace

TEST_CASE("a Submit becomes an engine request with every field") {
  RequestStreams streams(&tokenizer());
  ipc::Submit s = submit(7);
  s.choices = {{0, {letter('a')}, 1}, {3, {}, 0}};
  s.sampling = {0.5f, 0.25f, 0.125f, 40, 1.5f, 0.75f, -0.5f, 99, {{7, 2.0f}}, true, 4};
  s.max_tokens = 12, s.priority = ipc::Priority::kLow, s.deadline_us = 123;
  s.prompt_logprobs = true, s.n_prompt_logprobs_known = 2;
  RequestStreams::Output output;
  auto r = streams.begin(s, &output);
  REQUIRE(r);
  CHECK(output.messages.empty());
  CHECK((r->id == 7 && r->prompt == s.prompt && r->max_tokens == 12 && r->priority == 2 && r->deadline_us == 123));
  REQUIRE(r->choices.size() == 2);
  CHECK((r->choices[0].generated == std::vector<int32_t>{letter('a')} && r->choices[1].choice == 3));
  const SamplingParams& p = r->sampling;
  CHECK((p.temperature == 0.5f && p.top_p == 0.25f && p.min_p == 0.125f && p.top_k == 40 && p.seed == 99));
  CHECK((p.repetition_penalty == 1.5f && p.presence_penalty == 0.75f && p.frequency_penalty == -0.5f));
  CHECK((p.ignore_eos && p.logit_bias == s.sampling.logit_bias && r->n_top_logprobs == 4));
  CHECK((r->prompt_logprobs && r->n_prompt_logprobs_known == 1));  // entry 0 has no value
  CHECK(r->end_tokens == tokenizer().end_tokens());
}

TEST_CASE("malformed requests fail by themselves") {
  RequestStreams streams(&tokenizer());
  auto error_of = [&](ipc::Submit s) {
    RequestStreams::Output output;
    CHECK_FALSE(streams.begin(std::move(s), &output));
    std::vector<ipc::TokenEvent> events = events_of(output);
    REQUIRE(events.size() >= 1);
    CHECK(events[0].finish == FinishReason::kFailed);
    return events[0].error;
  };
  ipc::Submit s = submit(1);
  s.prompt.clear();
  CHECK(error_of(s) == "the prompt is empty");
  s = submit(1);
  s.prompt[1] = tokenizer().n_tokens();
  CHECK(error_of(s).find("index 1 must be >= 0 and <= " + std::to_string(tokenizer().n_tokens() - 1)) != std::string::npos);
  s = submit(1);
  s.choices[0].generated = {-1};
  CHECK(error_of(s).find("generated") != std::string::npos);
  s = submit(1);
  s.choices.push_back(s.choices[0]);
  CHECK(error_of(s).find("twice") != std::string::npos);
  RequestStreams::Output output;
  REQUIRE(streams.begin(submit(2), &output));
  CHECK(error_of(submit(2)).find("in use") != std::string::npos);
}

TEST_CASE("tokens become text; the finish carries what was held and forgets the request") {
  RequestStreams streams(&tokenizer());
  RequestStreams::Output output;
  REQUIRE(streams.begin(submit(1, {"xyz"}), &output));
  auto events = events_of(translate(streams, {token(1, 0, letter('a')), token(1, 1, letter('x'))}));
  REQUIRE(events.size() == 2);
  CHECK((events[0].text == "a" && events[0].n_released == 1 && events[0].index == 0));
  CHECK((events[1].text.empty() && events[1].token == letter('x') && events[1].n_released == 1));
  events = events_of(translate(streams, {token(1, 2, -1, SequenceEnd::kEndToken)}));
  REQUIRE(events.size() == 1);
  CHECK((events[0].finish == FinishReason::kStop && events[0].token == -1 && events[0].text == "x"));
  CHECK(events[0].n_released == 2);
  CHECK(streams.n_requests() == 0);
  CHECK(events_of(translate(streams, {token(1, 3, letter('b'))})).empty());
}

TEST_CASE("a stop string ends the choice at once, with the token that completed it; later tokens are dropped") {
  RequestStreams streams(&tokenizer());
  ipc::Submit s = submit(1, {"xy"});
  s.choices.push_back({1, {}, 0});
  RequestStreams::Output begun;
  REQUIRE(streams.begin(s, &begun));
  RequestStreams::Output output =
      translate(streams, {token(1, 0, letter('x')), token(1, 1, letter('y')), token(1, 2, letter('z')),
                          token(1, 0, letter('o'), SequenceEnd::kNone, 1)});
  auto events = events_of(output);
  REQUIRE(events.size() == 3);
  CHECK((events[1].finish == FinishReason::kStop && events[1].token == letter('y') && events[1].index == 1));
  CHECK((events[1].text.empty() && events[1].n_released == 0));
  CHECK((events[2].choice == 1 && events[2].text == "o"));
  REQUIRE(output.ended.size() == 1);
  CHECK((output.ended[0].id == 1 && output.ended[0].choice == 0));
  CHECK(streams.n_requests() == 1);
  // Complete with the very last token: the engine has ended it already.
  output = translate(streams, {token(1, 1, letter('x'), SequenceEnd::kNone, 1), token(1, 2, letter('y'), SequenceEnd::kMaxTokens, 1)});
  CHECK(events_of(output).back().finish == FinishReason::kStop);
  CHECK(output.ended.empty());
  CHECK(streams.n_requests() == 0);
}

TEST_CASE("ends are told as the client knows them") {
  struct Row { SequenceEnd end; FinishReason finish; };
  for (Row row : {Row{SequenceEnd::kEndToken, FinishReason::kStop}, Row{SequenceEnd::kMaxTokens, FinishReason::kLength},
                  Row{SequenceEnd::kContext, FinishReason::kLength}, Row{SequenceEnd::kPool, FinishReason::kLength},
                  Row{SequenceEnd::kDeadline, FinishReason::kDeadline}, Row{SequenceEnd::kFailed, FinishReason::kFailed},
                  Row{SequenceEnd::kCancelled, FinishReason::kAborted}}) {
    RequestStreams streams(&tokenizer());
    RequestStreams::Output output;
    REQUIRE(streams.begin(submit(1), &output));
    CHECK(streams.cancel(1, FinishReason::kAborted));
    auto events = events_of(translate(streams, {token(1, 0, -1, row.end)}));
    REQUIRE(events.size() == 1);
    CHECK(events[0].finish == row.finish);
    CHECK_FALSE(streams.cancel(1, FinishReason::kCancelled));
  }
}

TEST_CASE("a resume shows only what lies past the bytes released; a stop found in the replay ends it there") {
  RequestStreams streams(&tokenizer());
  ipc::Submit s = submit(1, {"xyz"});
  s.choices = {{0, {letter('a'), letter('x'), letter('y')}, 1}, {1, {letter('x'), letter('y'), letter('z')}, 0}};
  RequestStreams::Output begun;
  auto r = streams.begin(s, &begun);
  REQUIRE(r);
  auto events = events_of(begun);
  REQUIRE(events.size() == 1);  // choice 1: its worker died before telling
  CHECK((events[0].choice == 1 && events[0].finish == FinishReason::kStop && events[0].token == -1 && events[0].text.empty()));
  REQUIRE(r->choices.size() == 1);
  CHECK(r->choices[0].generated.size() == 3);
  events = events_of(translate(streams, {token(1, 3, letter('!'))}));
  REQUIRE(events.size() == 1);
  CHECK((events[0].text == "xy!" && events[0].n_released == 4 && events[0].index == 3));

  s = submit(2, {"xyz"});
  s.choices = {{0, {letter('x'), letter('y'), letter('z')}, 0}};
  begun = {};
  CHECK_FALSE(streams.begin(s, &begun));  // nothing left for the engine
  CHECK(events_of(begun)[0].finish == FinishReason::kStop);
}

TEST_CASE("log-probabilities: the prompt's first entry has no value, tops show names of control tokens") {
  RequestStreams streams(&tokenizer());
  ipc::Submit s = submit(1);
  s.prompt_logprobs = true;
  s.sampling.n_top_logprobs = 1;
  RequestStreams::Output output;
  REQUIRE(streams.begin(s, &output));
  REQUIRE(output.messages.size() == 1);
  const auto& first = std::get<ipc::PromptLogprobs>(output.messages[0]);
  CHECK((first.first_index == 0 && first.entries.size() == 1 && first.entries[0].chosen.bytes == "p"));
  EngineEvents events;
  EnginePrompt p;
  p.id = 1, p.n_done = 2, p.n_total = 2, p.first_logprob = 1;
  p.logprobs.push_back({letter('q'), {letter('q'), -0.5f}, {{2, -0.25f}}});
  events.prompts.push_back(p);
  output = {};
  streams.translate(std::move(events), &output);
  REQUIRE(output.messages.size() == 2);
  const auto& entries = std::get<ipc::PromptLogprobs>(output.messages[0]);
  CHECK((entries.first_index == 1 && entries.entries.size() == 1));
  CHECK((entries.entries[0].chosen.bytes == "q" && entries.entries[0].chosen.logprob == -0.5f));
  CHECK(entries.entries[0].top[0].bytes == "<|im_start|>");
  const auto& progress = std::get<ipc::PromptProgress>(output.messages[1]);
  CHECK((progress.n_done == 2 && progress.n_total == 2));
  EngineToken t = token(1, 0, letter('z'));
  t.has_logprob = true, t.chosen = {letter('z'), -1.5f};
  auto told = events_of(translate(streams, {t}));
  REQUIRE(told[0].logprob);
  CHECK((told[0].logprob->chosen.bytes == "z" && told[0].logprob->chosen.logprob == -1.5f));
}

}  // namespace tandem
