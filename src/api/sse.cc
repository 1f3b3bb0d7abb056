#include "api/sse.h"

#include <string>

#include "base/clock.h"

namespace tandem::api {

bool SseWriter::write(std::string_view bytes) {
  bool ok = sink_->write(bytes);
  last_write_us_ = monotonic_us();
  return ok;
}

bool SseWriter::data(std::string_view json) {
  std::string event = "data: ";
  event += json;
  event += "\n\n";
  return write(event);
}
bool SseWriter::keep_alive() { return write(": keep-alive\n\n"); }
bool SseWriter::done() { return write("data: [DONE]\n\n"); }

}  // namespace tandem::api
