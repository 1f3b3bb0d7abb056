// The rules of the request filter: words and patterns that a prompt may not hold. Pure; immutable after parsing,
// thread-safe.
//
// DESIGN. A line of the file is a comment (#), `re:PATTERN` (PCRE2) or words. Words match whole words, whatever
// stands between them, after NFKC case folding of both sides, so that "Straße" meets "STRASSE" and full-width or
// invisible characters hide nothing; in scripts written without blanks every letter is a word. One pass over the
// prompt serves any number of word rules (an index by first word); patterns run one after the other, each inside
// limits. Rejected: a scan per word (seconds for long lists), substring matching ("ass" in "class").
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace tandem::api {

class DenyList {
 public:
  static constexpr size_t kMaxFileBytes = 8 << 20;
  static constexpr size_t kMaxPatternBytes = 1024;
  static constexpr size_t kMaxPatterns = 256;

  // `file` is for messages, which name the line. A pattern that does not compile, is too large or nests too deep
  // is an error, as is a word rule without letters or digits.
  static Result<std::shared_ptr<const DenyList>> parse(const std::string& text, const std::string& file);
  ~DenyList();

  struct Match {
    int line = 0;              // of the rule
    bool is_exhausted = false;  // no match was found, but the pattern ran into its limit: the text counts as denied
  };
  // `text`: valid UTF-8. The first rule found, nothing if none fits.
  std::optional<Match> find(std::string_view text) const;
  size_t n_rules() const { return n_words_ + patterns_.size(); }

 private:
  struct WordRule {
    std::vector<std::string> words;  // folded
    int line = 0;
  };
  struct Pattern;
  DenyList();
  Status add_words(std::string_view text, int line, const std::string& at);
  Status add_pattern(const std::string& pattern, int line, const std::string& at);

  std::unordered_map<std::string, std::vector<WordRule>> by_first_word_;
  std::vector<std::unique_ptr<Pattern>> patterns_;
  size_t n_words_ = 0;
};

// The words of a text, folded as above. Exposed for the tests.
std::vector<std::string> folded_words(std::string_view text);

}  // namespace tandem::api
