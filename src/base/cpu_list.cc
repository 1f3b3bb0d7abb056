#include "base/cpu_list.h"

#include <algorithm>
#include <charconv>

namespace tandem {
namespace {

constexpr int kMaxCpu = 1023;  // what a cpu_set_t holds

bool parse_cpu(const std::string& text, int* out) {
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, *out);
  return error == std::errc() && at == end && *out >= 0 && *out <= kMaxCpu;
}

}  // namespace

Result<std::vector<int>> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  for (size_t begin = 0; begin <= text.size();) {
    size_t comma = std::min(text.find(',', begin), text.size());
    std::string item = text.substr(begin, comma - begin);
    size_t dash = item.find('-');
    int first = 0, last = 0;
    bool is_good = parse_cpu(item.substr(0, dash), &first);
    last = first;
    if (is_good && dash != std::string::npos) is_good = parse_cpu(item.substr(dash + 1), &last) && last >= first;
    if (!is_good)
      return invalid_argument("\"" + text + "\" must be processors 0 to 1023 like \"0-3,6\", \"" + item + "\" is not");
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    begin = comma + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

Result<std::vector<std::string>> split_cpu_lists(const std::string& text, int n) {
  std::vector<std::string> lists;
  if (text.empty()) return std::vector<std::string>(static_cast<size_t>(n));
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(';', begin), text.size());
    lists.push_back(text.substr(begin, end - begin));
    CHECK_ASSIGN([[maybe_unused]] auto cpus, parse_cpu_list(lists.back()));
    begin = end + 1;
  }
  if (lists.size() == 1) lists.resize(static_cast<size_t>(n), lists[0]);
  if (lists.size() != static_cast<size_t>(n))
    return invalid_argument("\"" + text + "\" has " + std::to_string(lists.size()) + " lists for " + std::to_string(n) +
                            " workers; give one each, separated by \";\", or one for all");
  return lists;
}

}  // namespace tandem
