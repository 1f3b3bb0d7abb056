#include "ctl/sse_parser.h"

namespace tandem::ctl {

std::vector<std::string> SseParser::feed(std::string_view bytes) {
  std::vector<std::string> events;
  partial_.append(bytes);
  size_t at = 0;
  for (size_t end; (end = partial_.find('\n', at)) != std::string::npos; at = end + 1) {
    std::string_view text(partial_.data() + at, end - at);
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    line(text, &events);
  }
  partial_.erase(0, at);
  return events;
}

void SseParser::line(std::string_view text, std::vector<std::string>* events) {
  if (text.empty()) {  // an event ends
    if (has_data_) events->push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
    return;
  }
  if (text.substr(0, 5) != "data:") return;
  text.remove_prefix(5);
  if (!text.empty() && text[0] == ' ') text.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += text;
  has_data_ = true;
}

}  // namespace tandem::ctl
