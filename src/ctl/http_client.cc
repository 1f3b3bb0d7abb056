#include "ctl/http_client.h"

#include <fmt/format.h>
#include <httplib.h>

#include "ctl/json_read.h"

namespace tandem::ctl {

namespace {

constexpr int kConnectSeconds = 5;
constexpr int kReadSeconds = 120;  // a stream says something (a keep-alive comment) every 15 s

std::string words(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "refused, or no such host";
    case httplib::Error::ConnectionTimeout:
      return "no answer in time";
    case httplib::Error::Read:
      return "closed, or silent for too long";
    default:
      return httplib::to_string(error);
  }
}

Status nobody(const std::string& url, httplib::Error error) {
  return unavailable(fmt::format(
      "no server answers at {} ({}); start one with `tandem serve --model FILE`, or name "
      "another with --url",
      url, words(error)));
}

httplib::Headers headers_of(const ServerOptions& server) {
  httplib::Headers headers;
  if (!server.key.empty()) headers.emplace("Authorization", "Bearer " + server.key);
  return headers;
}

void set_times(httplib::Client* client) {
  client->set_connection_timeout(kConnectSeconds);
  client->set_read_timeout(kReadSeconds);
  client->set_write_timeout(kReadSeconds);
}

}  // namespace

Result<std::string> normal_url(const std::string& url) {
  std::string scheme = "http://", rest = url;
  for (const char* known : {"http://", "https://"}) {
    if (url.rfind(known, 0) == 0) scheme = known, rest = url.substr(scheme.size());
  }
  rest = rest.substr(0, rest.find('/'));
  const bool good = !rest.empty() && rest.find_first_not_of(
                                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789.-_:[]") == std::string::npos;
  if (!good)
    return invalid_argument("--url: must read http://host:port, as in http://127.0.0.1:8080");
  return scheme + rest;
}

Result<HttpAnswer> http_get(const ServerOptions& server, const std::string& path) {
  CHECK_ASSIGN(const std::string url, normal_url(server.url));
  httplib::Client client(url);
  set_times(&client);
  const auto result = client.Get(path, headers_of(server));
  if (!result) return nobody(url, result.error());
  return HttpAnswer{result->status, result->body};
}

Result<HttpAnswer> http_post(const ServerOptions& server, const std::string& path,
                             const std::string& json,
                             const std::function<bool(std::string_view)>& on_data) {
  CHECK_ASSIGN(const std::string url, normal_url(server.url));
  httplib::Client client(url);
  set_times(&client);
  HttpAnswer answer;
  httplib::Request request;
  request.method = "POST";
  request.path = path;
  request.headers = headers_of(server);
  request.headers.emplace("Content-Type", "application/json");
  request.body = json;
  bool is_stopped = false;
  request.response_handler = [&](const httplib::Response& response) {
    answer.status = response.status;
    return true;
  };
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    if (answer.status != 200) return answer.body.append(data, size), true;
    is_stopped = !on_data({data, size});
    return !is_stopped;
  };
  const auto result = client.send(request);
  if (result || is_stopped) return answer;
  if (answer.status == 0) return nobody(url, result.error());
  return unavailable(fmt::format("the connection to {} broke while the answer came ({})", url,
                                 words(result.error())));
}

std::string describe_refusal(const HttpAnswer& answer) {
  const auto message = JsonDocument(answer.body).text("error.message");
  if (message && !message->empty()) return fmt::format("the server answers {}: {}", answer.status, *message);
  return fmt::format("the server answers {} without a reason; is it a Tandem server?",
                     answer.status);
}

std::string percent_encode(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_' || c == '~';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<uint8_t>(c));
  }
  return out;
}

}  // namespace tandem::ctl
