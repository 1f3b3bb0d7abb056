// The table of pre-tokenizers and PCRE2 around it. Patterns of a row are applied one after another:
// each cuts the pieces that the one before left. What no match covers is a piece of its own.
#include "tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

namespace tandem {

namespace {

// GPT-2 (Radford et al. 2019, encoder.py). The final `\s+` of the original equals the gap rule.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";
constexpr const char* kEachDigit = R"(\p{N})";
// Llama 3 and Qwen 2 as published in tokenizer.json, the contractions with ASCII letters only.
constexpr const char* kLlama3 =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]))"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Mistral's tekken and OpenAI's o200k: letters split by case.
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?)"
    R"(|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Row {
  const char* names;  // separated by blanks
  std::array<const char*, 4> patterns;
  bool ignores_merges = false;
  bool adds_bos = false;
};

constexpr Row kRows[] = {
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 mpt olmo jais trillion", {kGpt2}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b", {kEachDigit, kGpt2}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2", {kLlama3}, true, true},
    {"dbrx smaug-bpe", {kLlama3}},
    {"qwen2 deepseek-r1-qwen stablelm2", {kQwen2}},
    {"tekken", {kTekken}, true, true},
    {"gpt-4o llama4", {kO200k}},
    {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
};

bool has_name(const Row& row, std::string_view name) {
  const std::string padded = fmt::format(" {} ", row.names);
  return !name.empty() && name.find(' ') == std::string_view::npos &&
         padded.find(fmt::format(" {} ", name)) != std::string::npos;
}

const Row* find_row(const std::string& pre) {
  for (const Row& row : kRows) {
    if (has_name(row, pre.empty() ? "default" : pre)) return &row;
  }
  return nullptr;
}

std::string served_names() {
  std::string names;
  for (const Row& row : kRows) names += fmt::format("{}{}", names.empty() ? "" : " ", row.names);
  return names;
}

// \s as Unicode's White_Space property. PCRE2's own adds U+180E, which is not white space since
// Unicode 6.3.
std::string spell_out_white_space(std::string_view pattern) {
  constexpr std::string_view kWhiteSpace =
      R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      if (c == '[') in_class = true;
      if (c == ']') in_class = false;
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      out += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
    } else if (escaped == 'S') {
      out += fmt::format("[^{}]", kWhiteSpace);
    } else {
      out += {c, escaped};
    }
  }
  return out;
}

// Space of one call for matching. Thread safety: one per call.
class Matcher {
 public:
  Matcher()
      : data_(pcre2_match_data_create(1, nullptr)), context_(pcre2_match_context_create(nullptr)) {
    // The default of ten million counts per match is reached by a few MB of blanks; time stays
    // linear.
    pcre2_set_match_limit(context_, UINT32_MAX);
  }
  ~Matcher() {
    pcre2_match_data_free(data_);
    pcre2_match_context_free(context_);
    if (stack_) pcre2_jit_stack_free(stack_);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // 1: found, 0: no more, < 0: PCRE2's error.
  int find(const pcre2_code* code, std::string_view text, size_t from, size_t* begin, size_t* end) {
    int rc = match(code, text, from);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !stack_) {
      stack_ = pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, nullptr);
      pcre2_jit_stack_assign(context_, nullptr, stack_);
      rc = match(code, text, from);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) return rc;
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_);
    *begin = range[0];
    *end = range[1];
    return 1;
  }

 private:
  int match(const pcre2_code* code, std::string_view text, size_t from) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK, data_, context_);
  }
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_ = nullptr;
};

std::string pcre2_message(int code) {
  char buffer[256] = {};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof buffer);
  return buffer;
}

}  // namespace

struct PreTokenizer::Pattern {
  pcre2_code* code = nullptr;
  Pattern() = default;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() { pcre2_code_free(code); }

  Status compile(const std::string& text) {
    int error;
    PCRE2_SIZE offset;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    if (!code)
      return internal_error(fmt::format("pattern at {}: {}", offset, pcre2_message(error)));
    // Where the process may not make code executable, matching is interpreted: slower, same words.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return {};
  }

  Status cut(Matcher* matcher, std::string_view text, WordRange piece,
             std::vector<WordRange>* out) const {
    const std::string_view subject = text.substr(piece.begin, piece.end - piece.begin);
    const auto put = [&](size_t begin, size_t end) {
      out->push_back(
          {static_cast<uint32_t>(piece.begin + begin), static_cast<uint32_t>(piece.begin + end)});
    };
    size_t at = 0, begin, end;
    while (at < subject.size()) {
      const int rc = matcher->find(code, subject, at, &begin, &end);
      if (rc < 0)
        return internal_error(fmt::format("pre-tokenizer pattern: {}", pcre2_message(rc)));
      if (rc == 0) break;
      if (begin > at) put(at, begin);
      put(begin, end);
      at = end;
    }
    if (at < subject.size()) put(at, subject.size());
    return {};
  }
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::create(const std::string& pre) {
  const Row* row = find_row(pre);
  if (!row) {
    return unimplemented(fmt::format("tokenizer.ggml.pre: \"{}\" is not served; served are {}", pre,
                                     served_names()));
  }
  auto made = std::unique_ptr<PreTokenizer>(new PreTokenizer);
  made->ignores_merges_ = row->ignores_merges;
  for (const char* pattern : row->patterns) {
    if (!pattern) break;
    made->patterns_.push_back(std::make_unique<Pattern>());
    CHECK_OK(made->patterns_.back()->compile(spell_out_white_space(pattern)));
  }
  return made;
}

bool PreTokenizer::adds_bos(const std::string& pre) {
  const Row* row = find_row(pre);
  return row && row->adds_bos;
}

Status PreTokenizer::split(std::string_view text, std::vector<WordRange>* words) const {
  Matcher matcher;
  words->assign(1, {0, static_cast<uint32_t>(text.size())});
  std::vector<WordRange> next;
  for (const auto& pattern : patterns_) {
    next.clear();
    for (const WordRange& piece : *words) CHECK_OK(pattern->cut(&matcher, text, piece, &next));
    words->swap(next);
  }
  return {};
}

}  // namespace tandem
