#include "worker/tool_args.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace tandem {

namespace {

constexpr int kMaxFd = 1 << 20;
constexpr size_t kMaxTextBytes = size_t{1} << 30;

const std::set<std::string> kFlags = {"--json", "--ids", "--no-special", "--parse-special"};
const std::set<std::string> kValues = {"--prompt",      "--gen",      "--batch",  "--repeat",
                                       "--chunk",       "--tokens",   "--window", "--threads",
                                       "--activations", "--force-isa", "--to",     "--weights",
                                       "--calibration", "--calibration-tokens", "--out-name"};

bool parse_int(std::string_view text, int64_t* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Status take_value(const std::string& name, const std::string& value, ToolArgs* out) {
  if (name == "--model-fds") {
    CHECK_ASSIGN(out->model_fds, parse_numbers(name, value, 0, kMaxFd));
  } else if (name == "--model-names") {
    out->model_names = split(value);
  } else if (name == "--text-fd" || name == "--out-fd" || name == "--made-fd") {
    CHECK_ASSIGN(const std::vector<int> fds, parse_numbers(name, value, 0, kMaxFd));
    (name == "--text-fd" ? out->text_fd : name == "--out-fd" ? out->out_fd : out->made_fd) = fds[0];
  } else if (kValues.count(name)) {
    out->values[name] = value;
  } else {
    return invalid_argument("unknown argument " + name);
  }
  return {};
}

}  // namespace

std::string ToolArgs::text(const std::string& name, const std::string& otherwise) const {
  const auto found = values.find(name);
  return found == values.end() || found->second.empty() ? otherwise : found->second;
}

Result<int64_t> ToolArgs::number(const std::string& name, int64_t otherwise, int64_t low,
                                 int64_t high) const {
  const auto found = values.find(name);
  if (found == values.end()) return otherwise;
  int64_t value = 0;
  if (parse_int(found->second, &value) && value >= low && value <= high) return value;
  return invalid_argument(
      fmt::format("{} must be {} to {}, got \"{}\"", name, low, high, found->second));
}

Result<std::vector<int>> parse_numbers(const std::string& name, const std::string& text, int low,
                                       int high) {
  std::vector<int> numbers;
  for (const std::string& part : split(text)) {
    int64_t value = 0;
    if (!parse_int(part, &value) || value < low || value > high) {
      return invalid_argument(fmt::format("{} must be a list of numbers from {} to {}, got \"{}\"",
                                          name, low, high, text));
    }
    numbers.push_back(static_cast<int>(value));
  }
  return numbers;
}

Result<ToolArgs> parse_tool_args(const std::vector<std::string>& args) {
  ToolArgs out;
  for (size_t i = 0; i < args.size(); ++i) {
    if (kFlags.count(args[i])) {
      out.flags.insert(args[i]);
      continue;
    }
    if (i + 1 == args.size()) return invalid_argument(args[i] + " is unknown or lacks its value");
    CHECK_OK(take_value(args[i], args[i + 1], &out));
    ++i;
  }
  out.model_names.resize(out.model_fds.size(), "model");
  return out;
}

Result<std::string> read_tool_text(const ToolArgs& args) {
  if (args.text_fd < 0) return invalid_argument("--text-fd is needed");
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(args.text_fd, buffer, sizeof buffer);
    if (n == 0) return text;
    if (n < 0 && errno != EINTR) return errno_status(errno, "cannot read the text");
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    if (text.size() > kMaxTextBytes) return invalid_argument("the text has more than 1 GiB");
  }
}

}  // namespace tandem
