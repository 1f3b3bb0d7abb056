// The head of an HTTP/1.x request, parsed strictly before the HTTP library sees anything: what is ambiguous
// (two lengths, length and chunks, folded lines, bare line feeds) is refused, not guessed. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/api_error.h"

namespace tandem::api {

constexpr size_t kMaxHeaderCount = 100;
constexpr size_t kMaxTargetBytes = 4096;

struct HttpHead {
  std::string method, target, path;  // path: target up to '?'
  int minor_version = 1;             // HTTP/1.x
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case, values trimmed
  std::optional<uint64_t> content_length;
  bool is_chunked = false;
  bool expects_continue = false;
  bool keeps_alive = true;

  const std::string* find(std::string_view lower_name) const;
  bool has_body() const { return is_chunked || content_length.value_or(0) > 0; }
};

// Length of the head at the front of `bytes` with its blank line; npos: not complete yet. Ends at a bare-LF
// blank line too, so that the parser can refuse it at once.
size_t find_head_end(std::string_view bytes);
// `bytes` is one complete head. Never echoes its bytes in an error.
ApiResult<HttpHead> parse_http_head(std::string_view bytes);

}  // namespace tandem::api
