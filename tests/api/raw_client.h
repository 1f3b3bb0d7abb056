// A socket that sends what a test says, byte for byte, and reads replies with a deadline.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace tandem::api {

struct RawReply {
  int status = 0;                              // 0: no reply (closed, timeout)
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool is_complete = false;                    // ended as announced
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer_bytes = 0);
  bool send(std::string_view bytes);
  // One reply; `is_head`: no body follows.
  RawReply read_reply(int timeout_ms = 10000, bool is_head = false);
  // What has arrived within the time; stops early once `until` is in it.
  std::string read_until(std::string_view until, int timeout_ms = 10000);
  bool is_closed(int timeout_ms);  // the peer closed (end of stream or reset) within the time
  void shutdown_write();
  void reset();                    // closes with RST
  void close() { fd_.reset(); }
  int fd() const { return fd_.get(); }

 private:
  bool fill(int64_t deadline_us);
  UniqueFd fd_;
  std::string buffer_;
  bool is_eof_ = false;
};

std::string post(std::string_view path, std::string_view body, std::string_view more_headers = "");
std::string get(std::string_view path, std::string_view more_headers = "");
RawReply fetch(int port, const std::string& request, int timeout_ms = 10000);
// The JSON texts of an SSE body, with "[DONE]" as it is; comments left out.
std::vector<std::string> sse_events(std::string_view body);

}  // namespace tandem::api
