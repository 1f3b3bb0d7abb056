// Jinja2 as chat templates use it: parse once, render many times. Strings remember which of their bytes came
// from input (message content), through every operation, so that the output comes in segments. The dialect
// and settings are those of transformers: trim_blocks, lstrip_blocks, loop controls, immutable values, no
// loader, no autoescape. Every amount of work is bounded by Limits; an exceeded bound is an error naming it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "jinja/value.h"

namespace tandem::jinja {

struct Limits {
  int64_t max_source_bytes = 1 << 20;
  int64_t max_steps = 5'000'000;            // one per evaluated node, and per 64 bytes of string work
  int max_depth = 200;                      // nesting in the source, of values, and of macro calls
  int64_t max_output_bytes = 16 << 20;      // of the whole output and of any one string
  int64_t max_items = 1'000'000;            // of any one list
};

struct Segment {
  std::string text;
  bool from_input = false;
};

struct Rendered {
  std::vector<Segment> segments;  // neighbours differ in from_input; none is empty
  std::string text() const;       // all of them, concatenated
};

struct Program;

// Immutable after parse(); thread-safe.
class Template {
 public:
  // kInvalidArgument: "line N: reason".
  static Result<std::unique_ptr<Template>> parse(std::string_view source, const Limits& limits = {});
  ~Template();
  // `context`: a dict of the template's variables. `now_s`: seconds since 1970 for strftime_now, shown in
  // local time. kInvalidArgument: raise_exception's message verbatim (`is_raised`, when given, is then set);
  // anything else as "line N: reason".
  Result<Rendered> render(const Value& context, int64_t now_s, bool* is_raised = nullptr) const;

 private:
  Template();
  std::unique_ptr<Program> program_;
  Limits limits_;
};

}  // namespace tandem::jinja
