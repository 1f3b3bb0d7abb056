// Cuts text into words by the patterns that a vocabulary's merges were trained with; merges never
// cross words. Immutable after creation; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

struct WordRange {  // 32 bits: texts are at most 1 GiB
  uint32_t begin = 0;
  uint32_t end = 0;
};

class PreTokenizer {
 public:
  // `pre` as in tokenizer.ggml.pre; "" means "default". kUnimplemented names an unknown one and
  // lists the served.
  static Result<std::unique_ptr<PreTokenizer>> create(const std::string& pre);
  ~PreTokenizer();
  // Words of `text` (valid UTF-8), covering it in order. kInternal if the pattern engine gives up.
  Status split(std::string_view text, std::vector<WordRange>* words) const;
  // A word that is a token is taken whole, whatever the merges say.
  bool ignores_merges() const { return ignores_merges_; }
  // Whether the family's texts begin with BOS when the file does not say.
  static bool adds_bos(const std::string& pre);

 private:
  PreTokenizer();
  struct Pattern;
  std::vector<std::unique_ptr<Pattern>> patterns_;
  bool ignores_merges_ = false;
};

}  // namespace tandem
