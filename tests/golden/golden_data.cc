#include "tests/golden/golden_data.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
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

std::vector<FamilyReference> load_family_references() {
  std::vector<FamilyReference> references;
  const std::filesystem::path folder = kFolder + "families";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const nlohmann::json json = read_json(entry.path().string());
    FamilyReference r;
    r.name = entry.path().filename().string();
    r.model = (folder / json.at("model").get<std::string>()).string();
    r.ids = json.at("ids").get<std::vector<int32_t>>();
    r.logprobs = json.at("logprobs").get<std::vector<std::pair<int, Logprobs>>>();
    references.push_back(std::move(r));
  }
  std::sort(references.begin(), references.end(), [](auto& a, auto& b) { return a.name < b.name; });
  return references;
}

}  // namespace tandem
