#include "api/http_head.h"

#include <charconv>

namespace tandem::api {
namespace {

ApiError bad(std::string what) { return api_error("invalid_http", "bad HTTP request: " + std::move(what)); }

// RFC 9110 token characters.
bool is_token(std::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    bool ok = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
    if (!ok) return false;
  }
  return true;
}

bool is_printable(std::string_view text, bool allow_blanks) {
  for (unsigned char c : text) {
    if (c == ' ' || c == '\t') {
      if (!allow_blanks) return false;
    } else if (c < 0x20 || c == 0x7F) {
      return false;
    }
  }
  return true;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Takes the next CRLF line from `rest`. False: no CRLF.
bool next_line(std::string_view* rest, std::string_view* line) {
  size_t end = rest->find('\n');
  if (end == std::string_view::npos || end == 0 || (*rest)[end - 1] != '\r') return false;
  *line = rest->substr(0, end - 1);
  rest->remove_prefix(end + 1);
  return true;
}

std::optional<ApiError> parse_request_line(std::string_view line, HttpHead* head) {
  size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last)
    return bad("the first line must be METHOD TARGET VERSION");
  std::string_view method = line.substr(0, first), version = line.substr(last + 1);
  std::string_view target = line.substr(first + 1, last - first - 1);
  if (!is_token(method) || method.size() > 16) return bad("method");
  if (target.size() > kMaxTargetBytes)
    return api_error("uri_too_long", "the URL must be at most " + std::to_string(kMaxTargetBytes) +
                                         " bytes, got " + std::to_string(target.size()));
  if (!is_printable(target, false)) return bad("the URL holds control characters or blanks");
  for (unsigned char c : target)
    if (c >= 0x80) return bad("the URL must be ASCII (encode other characters with %)");
  if (target[0] != '/' && !(method == "OPTIONS" && target == "*"))
    return bad("the URL must begin with /");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (version.substr(0, 5) == "HTTP/")
      return api_error("http_version_not_supported", "HTTP/1.1 and HTTP/1.0 are spoken here");
    return bad("version");
  }
  head->method = method;
  head->target = target;
  head->path = target.substr(0, target.find_first_of("?#"));
  head->minor_version = version.back() - '0';
  head->keeps_alive = head->minor_version == 1;
  return std::nullopt;
}

std::optional<ApiError> parse_length(std::string_view value, HttpHead* head) {
  if (head->content_length) return bad("more than one Content-Length");
  uint64_t n = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (value.empty() || error != std::errc() || end != value.data() + value.size())
    return bad("Content-Length must be one decimal number");
  head->content_length = n;
  return std::nullopt;
}

std::optional<ApiError> apply_framing(const std::string& name, const std::string& value, HttpHead* head) {
  if (name == "content-length") return parse_length(value, head);
  if (name == "transfer-encoding") {
    if (head->is_chunked || lower(value) != "chunked")
      return bad("Transfer-Encoding must be chunked, once, or absent");
    head->is_chunked = true;
  } else if (name == "connection") {
    std::string options = "," + lower(value) + ",", compact;
    for (char c : options)
      if (c != ' ' && c != '\t') compact += c;
    if (compact.find(",close,") != std::string::npos) head->keeps_alive = false;
    else if (compact.find(",keep-alive,") != std::string::npos) head->keeps_alive = true;
  } else if (name == "expect") {
    if (lower(value) != "100-continue") return bad("Expect must be 100-continue or absent");
    head->expects_continue = head->minor_version == 1;
  } else if (name == "content-encoding" && lower(value) != "identity") {
    return bad("compressed bodies are not accepted; send the body without Content-Encoding");
  }
  return std::nullopt;
}

std::optional<ApiError> parse_header(std::string_view line, HttpHead* head) {
  if (line[0] == ' ' || line[0] == '\t') return bad("folded header lines are not accepted");
  size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) return bad("header name");
  std::string_view value = trim(line.substr(colon + 1));
  if (!is_printable(value, true)) return bad("a header value holds control characters");
  if (head->headers.size() >= kMaxHeaderCount)
    return api_error("headers_too_large",
                     "a request may have at most " + std::to_string(kMaxHeaderCount) + " header lines");
  std::string name = lower(line.substr(0, colon));
  for (const char* single : {"host", "authorization", "content-type", "origin", "expect"})
    if (name == single && head->find(name) != nullptr) return bad("header given twice: " + name);
  head->headers.emplace_back(name, value);
  return apply_framing(name, head->headers.back().second, head);
}

}  // namespace

const std::string* HttpHead::find(std::string_view lower_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_name) return &value;
  return nullptr;
}

size_t find_head_end(std::string_view bytes) {
  for (size_t at = bytes.find('\n'); at != std::string_view::npos; at = bytes.find('\n', at + 1)) {
    if (bytes.substr(at + 1, 1) == "\n") return at + 2;
    if (bytes.substr(at + 1, 2) == "\r\n") return at + 3;
  }
  return std::string_view::npos;
}

ApiResult<HttpHead> parse_http_head(std::string_view bytes) {
  HttpHead head;
  std::string_view rest = bytes, line;
  if (!next_line(&rest, &line)) return bad("lines must end with CR LF");
  if (auto error = parse_request_line(line, &head)) return *error;
  while (true) {
    if (!next_line(&rest, &line)) return bad("lines must end with CR LF");
    if (line.empty()) break;
    if (auto error = parse_header(line, &head)) return *error;
  }
  if (head.is_chunked && head.content_length)
    return bad("Content-Length and Transfer-Encoding exclude each other");
  if (head.is_chunked && head.minor_version == 0) return bad("HTTP/1.0 has no Transfer-Encoding");
  if (head.minor_version == 1 && head.find("host") == nullptr) return bad("Host is missing");
  return head;
}

}  // namespace tandem::api
