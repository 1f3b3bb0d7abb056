#include "worker/text_stream.h"

#include <algorithm>

namespace tandem {

bool TextStream::push(int32_t token) {
  if (is_stopped_) return true;
  // Bytes of a code point begun by an earlier token come out with the token that completes it; both begin
  // where that code point does.
  token_begins_.push_back(n_text_bytes_);
  return add(detokenizer_.push(token));
}

bool TextStream::finish() {
  if (is_stopped_) return true;
  if (add(detokenizer_.finish())) return true;
  is_finished_ = true;
  return false;
}

bool TextStream::add(std::string piece) {
  n_text_bytes_ += piece.size();
  held_ += piece;
  is_stopped_ = matcher_.push(piece);
  return is_stopped_;
}

std::string TextStream::take_text() {
  uint64_t n_safe = is_finished_ ? n_text_bytes_ : matcher_.n_safe();
  std::string out;
  if (n_safe > held_begin_) {
    uint64_t begin = std::max(held_begin_, std::min(n_released_bytes_, n_safe));
    out = held_.substr(begin - held_begin_, n_safe - begin);
    held_.erase(0, n_safe - held_begin_);
    held_begin_ = n_safe;
    n_released_bytes_ = std::max(n_released_bytes_, n_safe);
  }
  while (!token_begins_.empty() && (token_begins_.front() < n_released_bytes_ || is_finished_)) {
    token_begins_.pop_front();
    ++n_released_tokens_;
  }
  return out;
}

}  // namespace tandem
