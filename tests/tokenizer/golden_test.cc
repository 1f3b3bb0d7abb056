// Every id of the golden files, with the real vocabularies.
#include <sstream>

#include "model_files.h"

namespace tandem {

namespace {

void check_list(const Tokenizer& tokenizer, const nlohmann::json& cases, bool parse_special) {
  REQUIRE(!cases.empty());
  for (const auto& c : cases) {
    const std::string text = c.at("text");
    INFO("text: " << text << " parse_special: " << parse_special);
    CHECK(encode(tokenizer, text, parse_special) == c.at("ids").get<std::vector<int32_t>>());
  }
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  INFO(path);
  REQUIRE(in.good());
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}

void check_model(const std::string& golden_name) {
  const nlohmann::json golden = load_golden(golden_name);
  const auto tokenizer = load_tokenizer(golden.at("model"));
  check_list(*tokenizer, golden.at("tokenize"), false);
  check_list(*tokenizer, golden.at("tokenize_parse_special"), true);
  check_list(*tokenizer, golden.at("tokenize_as_plain_text"), false);
  // The figures of the long text are about its first so many tokens.
  const auto& gpl = golden.at("gpl3_first_tokens");
  const std::vector<int32_t> ids = encode(*tokenizer, read_file(gpl.at("text")), false, true);
  const auto first = gpl.at("ids_first16").get<std::vector<int32_t>>();
  REQUIRE(ids.size() >= gpl.at("n_tokens_with_bos").get<size_t>());
  CHECK(std::vector<int32_t>(ids.begin(), ids.begin() + 16) == first);
  for (const auto& c : golden.at("float32_reference")) {
    CHECK(encode(*tokenizer, c.at("prompt"), false, true) ==
          c.at("prompt_ids").get<std::vector<int32_t>>());
  }
  // And back: ids of plain text give the text again (a SentencePiece vocabulary takes U+2581 for a
  // blank).
  for (const auto& c : golden.at("tokenize")) {
    const std::string text = c.at("text");
    if (golden_name == "gemma3" && text.find("\xE2\x96\x81") != std::string::npos) continue;
    CHECK(tokenizer->decode(encode(*tokenizer, text), false) == text);
  }
}

}  // namespace

TEST_CASE("golden ids of SmolLM2", "[golden]") { check_model("smollm2"); }
TEST_CASE("golden ids of gemma3", "[golden]") { check_model("gemma3"); }

}  // namespace tandem
