#include "api/deny_list.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace tandem::api {
namespace {

// Some milliseconds of backtracking: an honest pattern needs a small part of it.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kDepthLimit = 10'000;
constexpr uint32_t kHeapLimitKib = 16 * 1024;
constexpr uint32_t kMaxNesting = 50;

bool is_unspaced_script(utf8proc_int32_t c) {
  return (c >= 0x0E00 && c <= 0x0EFF) || (c >= 0x1000 && c <= 0x109F) || (c >= 0x1780 && c <= 0x17FF) ||
         (c >= 0x2E80 && c <= 0x9FFF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x20000 && c <= 0x3FFFF);
}

bool is_word_part(utf8proc_int32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return true;
    default:
      return false;
  }
}

// NFKC case folding without ignorable characters. Invalid UTF-8 (never from the API) comes back as it is.
std::string fold(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  utf8proc_ssize_t n = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &out,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT | UTF8PROC_CASEFOLD | UTF8PROC_IGNORE));
  if (n < 0) return std::string(text);
  std::string folded(reinterpret_cast<char*>(out), static_cast<size_t>(n));
  std::free(out);
  return folded;
}

std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(" \t\r") + 1);
  line.erase(0, std::min(line.find_first_not_of(" \t"), line.size()));
  return line;
}

}  // namespace

std::vector<std::string> folded_words(std::string_view text) {
  const std::string folded = fold(text);
  std::vector<std::string> words;
  bool is_open = false;
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(folded.data());
  auto left = static_cast<utf8proc_ssize_t>(folded.size());
  while (left > 0) {
    utf8proc_int32_t c = 0;
    utf8proc_ssize_t n = utf8proc_iterate(at, left, &c);
    if (n <= 0) break;
    if (!is_word_part(c)) {
      is_open = false;
    } else {
      bool is_alone = is_unspaced_script(c);
      if (!is_open || is_alone) words.emplace_back();
      words.back().append(reinterpret_cast<const char*>(at), static_cast<size_t>(n));
      is_open = !is_alone;
    }
    at += n;
    left -= n;
  }
  return words;
}

struct DenyList::Pattern {
  pcre2_code* code = nullptr;
  int line = 0;
  ~Pattern() { pcre2_code_free(code); }
};

DenyList::DenyList() = default;
DenyList::~DenyList() = default;

Status DenyList::add_words(std::string_view text, int line, const std::string& at) {
  WordRule rule{folded_words(text), line};
  if (rule.words.empty())
    return invalid_argument(at + "a word rule needs a letter or digit; other signs can be denied with re:PATTERN");
  by_first_word_[rule.words[0]].push_back(std::move(rule));
  ++n_words_;
  return ok_status();
}

Status DenyList::add_pattern(const std::string& pattern, int line, const std::string& at) {
  if (patterns_.size() >= kMaxPatterns)
    return invalid_argument(at + "more than " + std::to_string(kMaxPatterns) + " patterns; write plain words as word rules");
  if (pattern.empty() || pattern.size() > kMaxPatternBytes)
    return invalid_argument(at + "a pattern must have 1 to " + std::to_string(kMaxPatternBytes) + " bytes, got " +
                            std::to_string(pattern.size()));
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(pcre2_compile_context_create(nullptr),
                                                                                   pcre2_compile_context_free);
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Pattern>();
  compiled->line = line;
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_CASELESS | PCRE2_NEVER_BACKSLASH_C | PCRE2_MULTILINE, &error,
                                 &offset, context.get());
  if (compiled->code == nullptr) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return invalid_argument(at + "the pattern is broken at byte " + std::to_string(offset) + ": " +
                            reinterpret_cast<const char*>(text));
  }
  // A pattern that fits the empty text would refuse every prompt.
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                      pcre2_match_data_free);
  if (pcre2_match(compiled->code, reinterpret_cast<PCRE2_SPTR>(""), 0, 0, 0, data.get(), nullptr) >= 0)
    return invalid_argument(at + "the pattern fits the empty text, so it would refuse every prompt");
  patterns_.push_back(std::move(compiled));
  return ok_status();
}

Result<std::shared_ptr<const DenyList>> DenyList::parse(const std::string& text, const std::string& file) {
  if (text.size() > kMaxFileBytes)
    return invalid_argument(file + " must have at most " + std::to_string(kMaxFileBytes) + " bytes, got " +
                            std::to_string(text.size()));
  std::shared_ptr<DenyList> list(new DenyList);
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string at = file + ":" + std::to_string(number) + ": ";
    line = trimmed(std::move(line));
    if (line.empty() || line[0] == '#') continue;
    const bool is_pattern = line.rfind("re:", 0) == 0;
    CHECK_OK(is_pattern ? list->add_pattern(trimmed(line.substr(3)), number, at) : list->add_words(line, number, at));
  }
  return std::shared_ptr<const DenyList>(std::move(list));
}

std::optional<DenyList::Match> DenyList::find(std::string_view text) const {
  if (!by_first_word_.empty()) {
    const std::vector<std::string> words = folded_words(text);
    for (size_t i = 0; i < words.size(); ++i) {
      auto rules = by_first_word_.find(words[i]);
      if (rules == by_first_word_.end()) continue;
      for (const WordRule& rule : rules->second) {
        bool fits = rule.words.size() <= words.size() - i &&
                    std::equal(rule.words.begin(), rule.words.end(), words.begin() + static_cast<std::ptrdiff_t>(i));
        if (fits) return Match{rule.line, false};
      }
    }
  }
  if (patterns_.empty()) return std::nullopt;
  std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(pcre2_match_context_create(nullptr),
                                                                               pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_depth_limit(context.get(), kDepthLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                      pcre2_match_data_free);
  for (const auto& pattern : patterns_) {
    int rc = pcre2_match(pattern->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data.get(), context.get());
    if (rc >= 0) return Match{pattern->line, false};
    if (rc != PCRE2_ERROR_NOMATCH) return Match{pattern->line, true};
  }
  return std::nullopt;
}

}  // namespace tandem::api
