// Renders a conversation with the model's own Jinja template, keeping track of which output bytes came from
// message content: those become PromptPieces with is_scaffold = false, so that control markers typed by a
// user stay text. Bounded in steps, depth and output. Immutable after creation; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace tandem {

struct ChatMessage {
  std::string role;
  std::string content;
  std::string name;  // empty: none
};

class ChatTemplate {
 public:
  // Parses; kInvalidArgument with line and reason. Also tries the template on a small conversation so that a
  // broken one is refused at load.
  static Result<std::unique_ptr<ChatTemplate>> create(const std::string& source, const Vocabulary& vocabulary);
  ~ChatTemplate();
  // The template's raise_exception is kInvalidArgument with its message.
  Result<std::vector<PromptPiece>> render(const std::vector<ChatMessage>& messages,
                                          bool add_generation_prompt) const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
