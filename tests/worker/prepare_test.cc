#include "worker/prepare.h"

#include <catch2/catch.hpp>

#include "tests/tokenizer/small_vocabulary.h"

namespace tandem {
namespace {

struct Fixture {
  std::unique_ptr<Tokenizer> tokenizer = make(bpe_vocabulary());
  std::unique_ptr<ChatTemplate> chat_template;
  TextModel model;
  explicit Fixture(const char* source =
                       "{{ bos_token }}{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('roles must be good') }}"
                       "{% endif %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}") {
    auto made = ChatTemplate::create(source, tokenizer->vocabulary());
    INFO(made.status().message());
    REQUIRE(made.ok());
    chat_template = std::move(*made);
    model = {tokenizer.get(), chat_template.get(), ""};
  }
};
ipc::Prepare chat(std::vector<ipc::Message> messages) {
  ipc::Prepare p;
  p.id = 5, p.kind = ipc::Prepare::Kind::kChat, p.messages = std::move(messages), p.want_prompt_text = true;
  return p;
}

}  // namespace

TEST_CASE("a conversation gets one BOS, and control markers in its content stay text (C-01, C-03)") {
  Fixture f;
  ipc::PrepareReply reply = prepare(chat({{"user", "a<|im_end|>", ""}}), f.model);
  REQUIRE(reply.ok);
  CHECK((reply.id == 5 && reply.prompt_text == "<bos><|im_start|>a<|im_end|><|im_end|>"));
  CHECK(std::count(reply.ids.begin(), reply.ids.end(), 0) == 1);
  CHECK((reply.ids[0] == 0 && reply.ids[1] == 2 && reply.ids.back() == 3));
  CHECK(std::count(reply.ids.begin(), reply.ids.end(), 3) == 1);  // the scaffold's own
  CHECK(reply.ids.size() == 3 + 1 + std::string("<|im_end|>").size());
}

TEST_CASE("errors are codes with a sentence") {
  Fixture f;
  ipc::PrepareReply reply = prepare(chat({{"bad", "x", ""}}), f.model);
  CHECK((!reply.ok && reply.error_code == "template_error" && reply.ids.empty()));
  CHECK(reply.error.find("roles must be good") != std::string::npos);
  f.model.chat_template = nullptr;
  f.model.chat_template_error = "no template";
  reply = prepare(chat({{"user", "x", ""}}), f.model);
  CHECK((!reply.ok && reply.error_code == "no_chat_template" && reply.error == "no template"));
  ipc::Prepare text;
  text.text = "a\xff";
  reply = prepare(text, f.model);
  CHECK((!reply.ok && reply.error_code == "invalid_prompt" && reply.error.find('\xff') == std::string::npos));
  ipc::Prepare ids;
  ids.kind = ipc::Prepare::Kind::kIds;
  ids.ids = {1, f.tokenizer->n_tokens()};
  reply = prepare(ids, f.model);
  CHECK((!reply.ok && reply.error_code == "invalid_prompt" && reply.error.find("index 1") != std::string::npos));
}

TEST_CASE("text and ids go both ways") {
  Fixture f;
  ipc::Prepare text;
  text.text = "hello<|im_end|>";
  ipc::PrepareReply reply = prepare(text, f.model);
  REQUIRE(reply.ok);
  CHECK((reply.ids[0] == 0 && std::count(reply.ids.begin(), reply.ids.end(), 3) == 0 && reply.prompt_text.empty()));
  text.parse_special = true, text.add_special = false, text.want_prompt_text = true;
  reply = prepare(text, f.model);
  CHECK((reply.ids.back() == 3 && reply.ids[0] != 0 && reply.prompt_text == "hello<|im_end|>"));
  ipc::Prepare ids;
  ids.kind = ipc::Prepare::Kind::kIds, ids.ids = reply.ids, ids.want_prompt_text = true;
  reply = prepare(ids, f.model);
  CHECK((reply.ok && reply.ids == ids.ids && reply.prompt_text == "hello"));
  ipc::DetokenizeReply back = detokenize({9, ids.ids}, f.model);
  CHECK((back.ok && back.id == 9 && back.text == "hello<|im_end|>"));
  back = detokenize({9, {-1}}, f.model);
  CHECK((!back.ok && back.error.find("got -1") != std::string::npos));
}

}  // namespace tandem
