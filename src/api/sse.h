// Server-sent events: `data: JSON` and a blank line, comments for keep-alive, and the [DONE] mark.
#pragma once

#include <string_view>

#include "api/http_types.h"

namespace tandem::api {

class SseWriter {
 public:
  explicit SseWriter(ReplySink* sink) : sink_(sink) {}
  // `json` has no line breaks. False: the client is gone; so for the others.
  bool data(std::string_view json);
  bool keep_alive();
  bool done();
  int64_t last_write_us() const { return last_write_us_; }

 private:
  bool write(std::string_view bytes);
  ReplySink* sink_;
  int64_t last_write_us_ = 0;
};

}  // namespace tandem::api
