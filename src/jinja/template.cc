// The room's door: exceptions end here.
#include "jinja/interpreter.h"
#include "jinja/jinja.h"
#include "jinja/parser.h"

namespace tandem::jinja {
namespace {

Status to_status(const RenderError& error) {
  if (error.is_raised) return invalid_argument(error.message);
  if (error.line == 0) return invalid_argument(error.message);
  return invalid_argument("line " + std::to_string(error.line) + ": " + error.message);
}

std::vector<Segment> to_segments(const Text& text) {
  std::vector<Segment> segments;
  size_t at = 0;
  const auto add = [&](size_t end, bool from_input) {
    if (end > at) segments.push_back({text.bytes.substr(at, end - at), from_input});
    at = end;
  };
  for (const Span& span : text.input) {
    add(span.begin, false);
    add(span.end, true);
  }
  add(text.bytes.size(), false);
  return segments;
}

}  // namespace

std::string Rendered::text() const {
  std::string all;
  for (const Segment& segment : segments) all += segment.text;
  return all;
}

Template::Template() = default;
Template::~Template() = default;

Result<std::unique_ptr<Template>> Template::parse(std::string_view source, const Limits& limits) {
  if (source.size() > static_cast<size_t>(limits.max_source_bytes)) {
    return invalid_argument("template has " + std::to_string(source.size()) + " bytes, more than max_source_bytes = " +
                            std::to_string(limits.max_source_bytes));
  }
  std::unique_ptr<Template> result(new Template);
  result->limits_ = limits;
  try {
    result->program_ = parse_program(source, limits.max_depth);
  } catch (const RenderError& error) {
    return to_status(error);
  }
  return result;
}

Result<Rendered> Template::render(const Value& context, int64_t now_s, bool* is_raised) const {
  if (!context.is(Kind::kDict)) return invalid_argument("the template's context must be a dictionary");
  try {
    Interpreter interpreter(limits_, now_s);
    return Rendered{to_segments(interpreter.run(*program_, context))};
  } catch (const RenderError& error) {
    if (is_raised != nullptr) *is_raised = error.is_raised;
    return to_status(error);
  }
}

}  // namespace tandem::jinja
