#include "tokenizer/chat_template.h"

#include <algorithm>

#include "base/clock.h"
#include "jinja/jinja.h"

namespace tandem {
namespace {

using jinja::Value;

// Roles of the API. Templates glue them into markers ("<|" + role + "|>"), so these count as scaffolding; any
// other role is the client's text, which could otherwise spell a control token ("endoftext").
constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

bool is_plain_role(const std::string& role) {
  return std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
}

Value message_value(const ChatMessage& message) {
  std::vector<std::pair<std::string, Value>> fields;
  fields.emplace_back("role", Value::text(message.role, !is_plain_role(message.role)));
  fields.emplace_back("content", Value::text(message.content, true));
  if (!message.name.empty()) fields.emplace_back("name", Value::text(message.name, true));
  return Value::dict(std::move(fields));
}

std::string token_text(const Vocabulary& vocabulary, int32_t id) {
  const bool exists = id >= 0 && static_cast<size_t>(id) < vocabulary.tokens.size();
  return exists ? vocabulary.tokens[static_cast<size_t>(id)] : std::string();
}

}  // namespace

struct ChatTemplate::Impl {
  std::unique_ptr<jinja::Template> parsed;
  std::string bos, eos, unknown, padding;

  Result<jinja::Rendered> render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                 bool* is_raised) const {
    std::vector<Value> list;
    for (const ChatMessage& message : messages) list.push_back(message_value(message));
    const Value context = Value::dict({
        {"messages", Value::list(std::move(list))},
        {"tools", Value::none()},
        {"documents", Value::none()},
        {"add_generation_prompt", Value::boolean(add_generation_prompt)},
        {"bos_token", Value::text(bos)},
        {"eos_token", Value::text(eos)},
        {"unk_token", Value::text(unknown)},
        {"pad_token", Value::text(padding)},
    });
    return parsed->render(context, utc_us() / 1'000'000, is_raised);
  }

  // A template that can render none of these is broken. Its own raise_exception is a rule, not a fault.
  Status try_out() const {
    const std::vector<std::vector<ChatMessage>> conversations = {
        {{"user", "Hello.", ""}},
        {{"system", "Be brief.", ""}, {"user", "Hello.", ""}},
        {{"user", "Hello.", ""}, {"assistant", "Hello!", ""}, {"user", "Bye.", ""}},
    };
    Status first;
    for (const auto& conversation : conversations) {
      bool is_raised = false;
      const Result<jinja::Rendered> rendered = render(conversation, true, &is_raised);
      if (rendered.ok() || is_raised) return ok_status();
      if (first.ok()) first = rendered.status();
    }
    return first;
  }
};

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::create(const std::string& source, const Vocabulary& vocabulary) {
  const auto refuse = [](const Status& status) { return invalid_argument("chat template: " + status.message()); };
  if (source.empty()) return invalid_argument("chat template: the model file has none (tokenizer.chat_template)");
  auto parsed = jinja::Template::parse(source);
  if (!parsed.ok()) return refuse(parsed.status());
  std::unique_ptr<ChatTemplate> result(new ChatTemplate);
  Impl& impl = *result->impl_;
  impl.parsed = std::move(parsed).value();
  impl.bos = token_text(vocabulary, vocabulary.bos);
  impl.eos = token_text(vocabulary, vocabulary.eos);
  impl.unknown = token_text(vocabulary, vocabulary.unknown);
  impl.padding = token_text(vocabulary, vocabulary.padding);
  if (const Status status = impl.try_out(); !status.ok()) return refuse(status);
  return result;
}

Result<std::vector<PromptPiece>> ChatTemplate::render(const std::vector<ChatMessage>& messages,
                                                      bool add_generation_prompt) const {
  Result<jinja::Rendered> rendered = impl_->render(messages, add_generation_prompt, nullptr);
  if (!rendered.ok()) return rendered.status();
  std::vector<PromptPiece> pieces;
  for (jinja::Segment& segment : rendered->segments) {
    pieces.push_back({std::move(segment.text), !segment.from_input});
  }
  return pieces;
}

}  // namespace tandem
