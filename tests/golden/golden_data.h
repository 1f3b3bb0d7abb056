// What the reference files say, as plain data.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

using Logprobs = std::vector<std::pair<int32_t, double>>;  // token, natural log

struct GoldenPrompt {
  std::string prompt;
  std::vector<int32_t> ids;
  Logprobs top10;  // after the last token of the prompt
  struct Greedy {
    int32_t token;
    double margin;  // log-probability of the token minus that of the runner-up
  };
  std::vector<Greedy> greedy;
};

struct GoldenText {
  std::string path;
  int n_tokens;
  std::vector<int32_t> first_ids;
  double mean_nll, perplexity;
  Logprobs top10_last;
};

struct Golden {
  std::string model_file;
  std::vector<GoldenPrompt> prompts;
  GoldenText text;
};

// `name`: "smollm2" or "gemma3". Fails the test when the file is not there.
Golden load_golden(const std::string& name);

}  // namespace tandem
