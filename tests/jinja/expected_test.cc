// Every template of tests/jinja/templates under every context, and every error case, against what jinja2 gave.
#include <catch2/catch.hpp>

#include "json_value.h"

namespace tandem::jinja {
namespace {

constexpr int64_t kNow = 1'790'000'000;

struct Outcome {
  bool parsed = false, ok = false, is_raised = false;
  std::string text;  // output or error message
};

Outcome run(const std::string& source, const Value& context) {
  Outcome outcome;
  const auto parsed = Template::parse(source);
  if (!parsed.ok()) {
    outcome.text = parsed.status().message();
    return outcome;
  }
  outcome.parsed = true;
  const auto rendered = (*parsed)->render(context, kNow, &outcome.is_raised);
  outcome.ok = rendered.ok();
  outcome.text = rendered.ok() ? rendered->text() : rendered.status().message();
  return outcome;
}

// "line 3: message" -> "message".
std::string without_line(const std::string& message) {
  const size_t colon = message.find(": ");
  return message.rfind("line ", 0) == 0 && colon != std::string::npos ? message.substr(colon + 2) : message;
}

void check_error(const nlohmann::ordered_json& expected, const Outcome& outcome) {
  CHECK_FALSE(outcome.ok);
  const std::string kind = expected.at("error");
  const std::string message = expected.at("message");
  CHECK(outcome.parsed == (kind != "syntax"));
  CHECK(outcome.is_raised == (kind == "raised"));
  if (kind == "syntax") {
    const std::string line = "line " + std::to_string(expected.at("line").get<int>()) + ": ";
    CHECK(outcome.text.substr(0, line.size()) == line);
  } else if (kind == "raised") {
    CHECK(outcome.text == message);
  } else if (kind == "undefined" || kind == "security") {
    CHECK(without_line(outcome.text) == message);
  } else {
    CHECK(without_line(outcome.text) != outcome.text);  // names a line
  }
}

}  // namespace

TEST_CASE("templates and errors give what jinja2 gives") {
  const auto contexts = read_json("contexts.json");
  int outputs = 0;
  int errors = 0;
  for (const auto& expected : read_json("expected.json")) {
    const bool is_file = expected.contains("template");
    const std::string name = is_file ? expected.at("template") : expected.at("name");
    const std::string context = expected.at("context");
    INFO(name << " with " << context);
    const std::string source = is_file ? read_file("templates/" + name) : expected.at("source").get<std::string>();
    REQUIRE(!source.empty());
    const Outcome outcome = run(source, to_value(contexts.at(context)));
    if (expected.contains("error")) {
      INFO("got: " << outcome.text);
      check_error(expected, outcome);
      ++errors;
    } else {
      CHECK(outcome.text == expected.at("output").get<std::string>());
      ++outputs;
    }
  }
  CHECK(outputs >= 140);
  CHECK(errors >= 80);
}

TEST_CASE("every Greek letter of the output came from input, and nothing else did") {
  // The messages of this context are made of Greek letters and blanks only; no template holds one.
  const Value context = to_value(read_json("contexts.json").at("greek"));
  int checked = 0;
  for (const auto& expected : read_json("expected.json")) {
    if (!expected.contains("template") || !expected.contains("output") || expected.at("context") != "greek") continue;
    const std::string name = expected.at("template");
    const auto parsed = Template::parse(read_file("templates/" + name));
    REQUIRE(parsed.ok());
    const auto rendered = (*parsed)->render(context, kNow);
    REQUIRE(rendered.ok());
    for (const Segment& segment : rendered->segments) {
      INFO(name << ": [" << segment.text << "]");
      CHECK_FALSE(segment.text.empty());
      for (const char c : segment.text) {
        const bool is_greek = static_cast<unsigned char>(c) == 0xCE || static_cast<unsigned char>(c) == 0xCF;
        const bool is_ascii_scaffold = static_cast<unsigned char>(c) < 0x80 && c != ' ' && c != '\n';
        // Escapes that stand for a character of the input ("\n" in JSON, "&lt;") are input as well.
        if (is_greek) CHECK(segment.from_input);
        if (is_ascii_scaffold && segment.from_input) CHECK(std::string("\\nu2003x").find(c) != std::string::npos);
      }
    }
    ++checked;
  }
  CHECK(checked >= 10);
}

}  // namespace tandem::jinja
