// Talks to a running server. One request a call, no connection kept.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "ctl/verbs.h"

namespace tandem::ctl {

struct HttpAnswer {
  int status = 0;
  std::string body;  // empty for a 200 whose body went to on_data
};

// kInvalidArgument: no URL. kUnavailable: nobody answers, with what to do. Every
// HTTP status is an answer, no error.
Result<HttpAnswer> http_get(const ServerOptions& server, const std::string& path);
// on_data gets the body of a 200 as it comes; false stops.
Result<HttpAnswer> http_post(const ServerOptions& server, const std::string& path,
                             const std::string& json,
                             const std::function<bool(std::string_view)>& on_data);

// "http://host[:port]" (or https) without a trailing slash, "/v1" or other path taken off.
Result<std::string> normal_url(const std::string& url);
// One sentence about an answer that is not 200: the server's own message if it is OpenAI-shaped.
std::string describe_refusal(const HttpAnswer& answer);
std::string percent_encode(std::string_view text);

}  // namespace tandem::ctl
