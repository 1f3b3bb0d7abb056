// Configured system prompts: how a text is parted, and the ids with which a conversation begins.
#include "worker/warmup.h"

#include <catch2/catch.hpp>

#include "tests/tokenizer/small_vocabulary.h"

namespace tandem {

TEST_CASE("prompts are parted by lines of three dashes") {
  CHECK(split_warmup_prompts("").empty());
  CHECK(split_warmup_prompts(" \n---\n\n---\n").empty());
  CHECK(split_warmup_prompts("one") == std::vector<std::string>{"one"});
  CHECK(split_warmup_prompts("one\n---\ntwo\n\nlines\n---\n") == std::vector<std::string>{"one", "two\n\nlines"});
  CHECK(split_warmup_prompts("a --- b\n ---\n----") == std::vector<std::string>{"a --- b\n ---\n----"});
}

TEST_CASE("the prefix ends where the user's words begin") {
  const auto tokenizer = make(bpe_vocabulary());
  auto chat = ChatTemplate::create(
      "{% for m in messages %}{% if m.role == 'system' and m.content == 'bad' %}{{ raise_exception('no system prompts') }}{% endif %}"
      "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}",
      tokenizer->vocabulary());
  REQUIRE(chat.ok());
  const TextModel model{tokenizer.get(), chat->get(), ""};
  const auto ids = warmup_prefix("be kind", model, 1000);
  REQUIRE(ids.ok());
  ipc::Prepare question;
  question.kind = ipc::Prepare::Kind::kChat;
  question.messages = {{"system", "be kind", ""}, {"user", "hello", ""}};
  const std::vector<int32_t> whole = prepare(question, model).ids;
  REQUIRE(whole.size() > ids->size());
  CHECK(std::equal(ids->begin(), ids->end(), whole.begin()));
  const std::string text = tokenizer->decode(*ids, true);
  CHECK(text.find("be kind") != std::string::npos);
  CHECK(text.find("user") != std::string::npos);

  const auto refused = warmup_prefix("bad", model, 1000);
  REQUIRE(!refused.ok());
  CHECK(refused.status().message().find("warmup.prompts: ") == 0);
  CHECK(refused.status().message().find("no system prompts") != std::string::npos);
  const auto long_one = warmup_prefix("be kind", model, static_cast<int>(ids->size()) + 1);
  REQUIRE(!long_one.ok());
  CHECK(long_one.status().message().find(std::to_string(ids->size()) + " tokens") != std::string::npos);
  CHECK(warmup_prefix("be kind", model, static_cast<int>(ids->size()) + 2).ok());
}

TEST_CASE("without a chat template the text itself is the prefix; one that ignores system prompts leaves nothing of it") {
  const auto tokenizer = make(bpe_vocabulary());
  std::vector<int32_t> want;
  REQUIRE(tokenizer->encode("hello", {true, false}, &want).ok());
  CHECK(*warmup_prefix("hello", {tokenizer.get(), nullptr, "none"}, 1000) == want);
  const auto deaf = ChatTemplate::create("{{ messages[-1].content }}", tokenizer->vocabulary());
  REQUIRE(deaf.ok());
  const auto refused = warmup_prefix("be kind", {tokenizer.get(), deaf->get(), ""}, 1000);
  CHECK((!refused.ok() || refused->size() == 1));  // nothing, or BOS
}

}  // namespace tandem
