// The name rule of split models: "<stem>-00001-of-00003.gguf", five digits each, counted from one.
#include <fmt/format.h>

#include <cctype>

#include "gguf/gguf_reader.h"

namespace tandem {
namespace {

constexpr std::string_view kSuffixForm = "-00001-of-00001.gguf";

int five_digits(std::string_view text) {  // -1: not five digits
  int value = 0;
  for (char c : text.substr(0, 5)) {
    if (!std::isdigit(static_cast<unsigned char>(c))) return -1;
    value = value * 10 + (c - '0');
  }
  return value;
}

}  // namespace

Result<std::vector<std::string>> GgufModel::split_paths(const std::string& path) {
  std::vector<std::string> paths{path};
  if (path.size() < kSuffixForm.size()) return paths;
  size_t stem = path.size() - kSuffixForm.size();
  std::string_view suffix = std::string_view(path).substr(stem);
  int number = five_digits(suffix.substr(1)), count = five_digits(suffix.substr(10));
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || suffix.substr(15) != ".gguf" ||
      number < 0 || count < 0)
    return paths;
  if (number < 1 || number > count)
    return invalid_argument(fmt::format(
        "{}: the part number in the name must be from 1 to {}, found {}", path, count, number));
  paths.clear();
  for (int i = 1; i <= count; ++i)
    paths.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", path.substr(0, stem), i, count));
  return paths;
}

}  // namespace tandem
