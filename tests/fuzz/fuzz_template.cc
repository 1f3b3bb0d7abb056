// A template, a NUL, and the content of a message: parsed and rendered within small bounds.
#include "fuzz_target.h"
#include "jinja/jinja.h"

namespace {

using tandem::jinja::Limits;
using tandem::jinja::Rendered;
using tandem::jinja::Template;
using tandem::jinja::Value;

Value context_of(std::string_view content) {
  const auto message = [&](const char* role) {
    return Value::dict({{"role", Value::text(role)}, {"content", Value::text(content, true)}});
  };
  return Value::dict({{"messages", Value::list({message("system"), message("user"), message("assistant")})},
                      {"bos_token", Value::text("<s>")},
                      {"eos_token", Value::text("</s>")},
                      {"tools", Value::none()},
                      {"add_generation_prompt", Value::boolean(true)}});
}

void check_segments(const Rendered& rendered, const Limits& limits) {
  bool before = false;
  size_t size = 0;
  for (size_t i = 0; i < rendered.segments.size(); ++i) {
    const auto& segment = rendered.segments[i];
    FUZZ_REQUIRE(!segment.text.empty());
    FUZZ_REQUIRE(i == 0 || segment.from_input != before);
    before = segment.from_input;
    size += segment.text.size();
  }
  FUZZ_REQUIRE(size <= static_cast<size_t>(limits.max_output_bytes));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::fuzz::planted_fault(data, size);
  Limits limits;
  limits.max_steps = 50'000;
  limits.max_output_bytes = 1 << 18;
  limits.max_items = 10'000;
  const std::string_view input = tandem::fuzz::view(data, size);
  const size_t cut = std::min(input.find('\0'), input.size());
  const auto parsed = Template::parse(input.substr(0, cut), limits);
  if (!parsed.ok()) return 0;
  const std::string_view content = cut < input.size() ? input.substr(cut + 1) : "Hello";
  const auto rendered = (*parsed)->render(context_of(content), 1'790'000'000);
  if (rendered.ok()) {
    check_segments(*rendered, limits);
  } else {
    FUZZ_REQUIRE(rendered.status().code() == tandem::StatusCode::kInvalidArgument);
  }
  return 0;
}
