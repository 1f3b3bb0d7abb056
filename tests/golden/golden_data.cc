#include "tests/golden/golden_data.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

const std::string kFolder = std::string(TANDEM_SOURCE_DIR) + "/tests/golden/";

nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  INFO(path);
  REQUIRE(in.good());
  return nlohmann::json::parse(in);
}

}  // namespace

Golden load_golden(const std::string& name) {
  const nlohmann::json json = read_json(kFolder + "reference/" + name + ".json");
  Golden golden;
  golden.model_file = json.at("model");
  for (const auto& p : json.at("float32_reference")) {
    GoldenPrompt prompt;
    prompt.prompt = p.at("prompt");
    prompt.ids = p.at("prompt_ids").get<std::vector<int32_t>>();
    prompt.top10 = p.at("top10_logprobs_last_prompt_position").get<Logprobs>();
    for (const auto& g : p.at("greedy")) prompt.greedy.push_back({g.at("id"), g.at("margin")});
    golden.prompts.push_back(std::move(prompt));
  }
  const auto& text = json.at("gpl3_first_tokens");
  golden.text = {text.at("text"),
                 text.at("n_tokens_with_bos"),
                 text.at("ids_first16").get<std::vector<int32_t>>(),
                 text.at("mean_nll_float32"),
                 text.at("perplexity_float32"),
                 text.at("top10_logprobs_last_position").get<Logprobs>()};
  return golden;
}

}  // namespace tandem
