// Tokens of one choice -> the text the client may see: whole code points, nothing of a stop string, nothing
// that could still become one. Deterministic: pushing the same tokens again, after a worker's death, comes to
// the same state, and only what lies past the bytes released before comes out. Confined to one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "worker/stop_matcher.h"

namespace tandem {

class TextStream {
 public:
  // `bytes_released`: of an earlier life of this choice; replay its tokens with push() first.
  TextStream(const Tokenizer* tokenizer, const std::vector<std::string>& stops, uint64_t bytes_released = 0)
      : detokenizer_(tokenizer), matcher_(stops), n_released_bytes_(bytes_released) {}

  // Takes the next token. True: a stop string is complete, the choice has ended.
  bool push(int32_t token);
  // No token follows: what was held back may be shown. True: it completed a stop string.
  bool finish();
  // Text that became showable since the last call.
  std::string take_text();
  // Tokens of which a byte has been shown, as of the last take_text(). A token without text counts once
  // something after it is shown, or with the end of the text.
  uint32_t n_released_tokens() const { return n_released_tokens_; }

 private:
  bool add(std::string piece);

  DetokenizeStream detokenizer_;
  StopMatcher matcher_;
  std::string held_;                 // text from held_begin_ on
  uint64_t held_begin_ = 0;          // offset in the choice's text
  uint64_t n_text_bytes_ = 0;        // all text so far, shown or not
  uint64_t n_released_bytes_;
  std::deque<uint64_t> token_begins_;  // of tokens not yet counted as released: where their text begins
  uint32_t n_released_tokens_ = 0;
  bool is_stopped_ = false;
  bool is_finished_ = false;
};

}  // namespace tandem
