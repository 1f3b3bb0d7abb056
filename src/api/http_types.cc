#include "api/http_types.h"

namespace tandem::api {

const std::string* HttpRequest::header(std::string_view lower_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_name) return &value;
  return nullptr;
}

std::string HttpRequest::query_value(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return value;
  return "";
}

HttpReply error_reply(ApiError error) {
  HttpReply reply;
  reply.status = error.http_status;
  reply.body = api_error_json(error);
  if (error.retry_after_s) reply.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_s));
  if (error.http_status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  reply.error = std::move(error);
  return reply;
}

HttpReply json_reply(std::string body) {
  HttpReply reply;
  reply.body = std::move(body);
  return reply;
}

}  // namespace tandem::api
