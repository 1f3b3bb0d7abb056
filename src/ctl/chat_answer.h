// An answer of /v1/chat/completions as its events arrive. The server may be any: what is not as it should be is an error
// of the answer or left out. Pure.
#pragma once

#include <string>
#include <string_view>

#include "ctl/sse_parser.h"

namespace tandem::ctl {

class ChatAnswer {
 public:
  // The text that came with these bytes. After an error there is no more.
  std::string feed(std::string_view bytes);

  const std::string& text() const { return text_; }
  const std::string& finish_reason() const { return finish_reason_; }
  const std::string& error() const { return error_; }
  bool is_done() const { return is_done_; }

 private:
  void event(const std::string& payload);
  SseParser parser_;
  std::string text_, finish_reason_, error_;
  bool is_done_ = false;
};

}  // namespace tandem::ctl
