// Server-sent events out of bytes as they come (WHATWG HTML, 9.2): only what the API sends, data
// lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem::ctl {

class SseParser {
 public:
  // Payloads of the events that became complete with these bytes; comments and other fields are
  // left out.
  std::vector<std::string> feed(std::string_view bytes);

 private:
  void line(std::string_view text, std::vector<std::string>* events);
  std::string partial_;  // of a line
  std::string data_;
  bool has_data_ = false;
};

}  // namespace tandem::ctl
