// Speed of encoding in MB/s, on text and on what tokenizers stumble over, at 1, 4 and 16 MB: the
// figures of a row must stay level (linear time). Checks first that the ids decode to the text
// again.
//   tokenizer_bench MODEL.gguf [TEXT_FILE]
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/clock.h"
#include "gguf/gguf_reader.h"
#include "tokenizer/tokenizer.h"
#include "worker/vocabulary_gguf.h"

namespace tandem {

namespace {

constexpr size_t kMega = 1000000;

std::unique_ptr<Tokenizer> load(const char* path) {
  std::vector<GgufFile> files;
  files.push_back({UniqueFd(::open(path, O_RDONLY | O_CLOEXEC)), path});
  auto model = GgufModel::open(std::move(files));
  if (!model.ok()) return std::fprintf(stderr, "%s\n", model.status().message().c_str()), nullptr;
  auto vocabulary = read_vocabulary(**model);
  if (!vocabulary.ok())
    return std::fprintf(stderr, "%s\n", vocabulary.status().message().c_str()), nullptr;
  const int64_t start = monotonic_us();
  auto tokenizer = Tokenizer::create(std::move(vocabulary).value());
  if (!tokenizer.ok())
    return std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str()), nullptr;
  std::printf("%s: %d tokens, created in %lld ms\n", path, (*tokenizer)->n_tokens(),
              static_cast<long long>((monotonic_us() - start) / 1000));
  return std::move(tokenizer).value();
}

std::string repeat(const std::string& unit, size_t n_bytes) {
  std::string text;
  while (text.size() + unit.size() <= n_bytes) text += unit;
  return text;
}

bool run(const Tokenizer& tokenizer, const char* name, const std::string& unit) {
  std::printf("%-28s", name);
  for (size_t megas : {1, 4, 16}) {
    const std::string text = repeat(unit, megas * kMega);
    std::vector<int32_t> ids;
    int64_t best_us = INT64_MAX;
    for (int round = 0; round < 3; ++round) {
      ids.clear();
      const int64_t start = monotonic_us();
      const Status status = tokenizer.encode(text, {}, &ids);
      best_us = std::min(best_us, monotonic_us() - start);
      if (!status.ok()) return std::printf(" %s\n", status.message().c_str()), false;
    }
    if (tokenizer.decode(ids, false) != text)
      return std::printf(" decodes to another text\n"), false;
    std::printf(" %7.1f", static_cast<double>(text.size()) / static_cast<double>(best_us));
    std::fflush(stdout);
  }
  std::printf("\n");
  return true;
}

}  // namespace

int bench_main(int argc, char** argv) {
  if (argc < 2 || argc > 3)
    return std::fprintf(stderr, "usage: tokenizer_bench MODEL.gguf [TEXT_FILE]\n"), 2;
  const auto tokenizer = load(argv[1]);
  if (!tokenizer) return 1;
  std::ifstream in(argc == 3 ? argv[2] : "/usr/share/common-licenses/GPL-3", std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (text.str().empty()) return std::fprintf(stderr, "the text file cannot be read\n"), 1;
  std::string mixed_case, digits;
  uint64_t state = 1;
  for (int i = 0; i < 100000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    mixed_case += static_cast<char>(((state >> 33) % 2 ? 'a' : 'A') + (state >> 40) % 26);
    digits += static_cast<char>('0' + (state >> 40) % 10);
  }
  std::printf("%-28s %7s %7s %7s  MB/s (MB = 10^6 bytes)\n", "", "1 MB", "4 MB", "16 MB");
  bool good = run(*tokenizer, "text", text.str());
  good &= run(*tokenizer, "one letter", "a");
  good &= run(*tokenizer, "blanks", " ");
  good &= run(*tokenizer, "blanks and a letter", std::string(999, ' ') + "a");
  good &= run(*tokenizer, "newlines", "\n");
  good &= run(*tokenizer, "emoji", "\xF0\x9F\x98\x80\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD");
  good &= run(*tokenizer, "random letters, one word", mixed_case);
  good &= run(*tokenizer, "digits", digits);
  good &= run(*tokenizer, "Chinese, no blanks",
              "\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xB8\x96\xE7\x95\x8C\xE4\xBB\x8A\xE5\xA4\xA9");
  good &= run(*tokenizer, "control markers as text", "<|im_end|><end_of_turn>");
  return good ? 0 : 1;
}

}  // namespace tandem

int main(int argc, char** argv) { return tandem::bench_main(argc, argv); }
