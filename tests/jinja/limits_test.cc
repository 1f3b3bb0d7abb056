// Hostile templates and contents: every bound is an error that names it; nothing crashes, leaks or takes long.
#include <catch2/catch.hpp>
#include <thread>

#include "json_value.h"

namespace tandem::jinja {
namespace {

std::string times(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

std::string error_of(const std::string& source, const Value& context = Value::dict({}), const Limits& limits = {}) {
  const auto parsed = Template::parse(source, limits);
  if (!parsed.ok()) {
    CHECK(parsed.status().code() == StatusCode::kInvalidArgument);
    return parsed.status().message();
  }
  const auto rendered = (*parsed)->render(context, 0);
  if (rendered.ok()) return "";
  CHECK(rendered.status().code() == StatusCode::kInvalidArgument);
  return rendered.status().message();
}

bool names(const std::string& message, const std::string& what) {
  if (message.find(what) == std::string::npos) UNSCOPED_INFO(message);
  return message.find(what) != std::string::npos;
}

std::string output_of(const std::string& source, const Value& context = Value::dict({})) {
  const auto parsed = Template::parse(source);
  REQUIRE(parsed.ok());
  const auto rendered = (*parsed)->render(context, 0);
  INFO(rendered.status().message());
  REQUIRE(rendered.ok());
  return rendered->text();
}

}  // namespace

TEST_CASE("nesting in the source is bounded") {
  constexpr int kDeep = 50'000;
  for (const std::string& source : {
           "{{ " + times("(", kDeep), "{{ " + times("[", kDeep), "{{ " + times("{1:", kDeep), "{{ " + times("not ", kDeep),
           "{{ " + times("-", kDeep), "{{ " + times("a if b else ", kDeep), "{{ " + times("f(", kDeep),
           "{{ a" + times("[a", kDeep), times("{% if a %}", kDeep), times("{% for a in b %}", kDeep),
           times("{% macro m() %}", kDeep), "{% set " + times("(", kDeep), "{{ x is " + times("eq (1 is ", kDeep),
           "{% for a in b " + times("if (", kDeep), times("{% filter upper %}", kDeep)}) {
    INFO(source.substr(0, 40));
    CHECK(names(error_of(source), "max_depth = 200"));
  }
}

TEST_CASE("long chains are bounded, those of real templates are not in danger") {
  for (const std::string link : {" + a", " | upper", ".a", "[0]", " and a", " or a", "()", " * a", " ** a"}) {
    INFO(link);
    CHECK(names(error_of("{{ a" + times(link, 100'000) + " }}"), "max_depth"));
  }
  CHECK(output_of("{{ 1" + times(" + 1", 150) + " }}") == "151");
  CHECK(output_of("{{ 'a'" + times(" ~ 'a'", 5000) + " }}").size() == 5001);
}

TEST_CASE("recursion at run time is bounded") {
  CHECK(names(error_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "max_depth"));
  CHECK(names(error_of("{% macro m(a) %}{% for x in [1] %}{{ m(m) }}{% endfor %}{% endmacro %}{{ m(1) }}"), "max_depth"));
  CHECK(names(error_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), "max_depth"));
  CHECK(names(error_of("{% macro m() %}{{ caller is defined }}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}"), "max_depth"));
}

TEST_CASE("steps are bounded") {
  const std::string loops = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
  CHECK(names(error_of(loops), "max_steps = 5000000"));
  // Work on long strings counts as well, not only the number of operations.
  const Value big = Value::dict({{"c", Value::text(std::string(4 << 20, 'a'), true)}});
  Limits limits;
  limits.max_steps = 300'000;
  for (const std::string work : {"c.upper()", "c.strip('b')", "c[1:]", "c.replace('b', 'c')", "c ~ 'x'", "c.find('b')",
                                  "c.count('b')", "c | tojson", "c == c", "'b' in c", "c.split('b')", "c.isalpha()"}) {
    INFO(work);
    CHECK(names(error_of("{% for i in range(100000) %}{% set x = " + work + " %}{% endfor %}", big, limits),
                "max_steps = 300000"));
  }
}

TEST_CASE("output, strings and lists are bounded") {
  const std::string doubling = "{% set n = namespace(x=X) %}{% for i in range(64) %}{% set n.x = n.x + n.x %}{% endfor %}";
  const auto doubled = [&](const std::string& start) {
    return error_of(std::string(doubling).replace(doubling.find("=X") + 1, 1, start));
  };
  CHECK(names(doubled("'abcd'"), "max_output_bytes = 16777216"));
  CHECK(names(doubled("[1]"), "max_items = 1000000"));
  CHECK(names(error_of("{{ 'abc' * 9223372036854775807 }}"), "max_output_bytes"));
  CHECK(names(error_of("{{ [1] * 9223372036854775807 }}"), "max_items"));
  CHECK(names(error_of("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}"), "max_output_bytes"));
  CHECK(names(error_of("{{ range(100001) }}"), "MAX_RANGE"));
  CHECK(names(error_of("{{ 'x'.center(99999999999) }}"), "max_output_bytes"));
  CHECK(names(error_of("{{ '%99999999999d' % 1 }}"), "10000"));
  CHECK(names(error_of("{{ '{:99999999999}'.format(1) }}"), "10000"));
  CHECK(names(error_of("{{ 'a\n' * 1000 | indent(99999999) }}"), "max_output_bytes"));
  CHECK(names(error_of(std::string((1 << 20) + 1, 'x')), "max_source_bytes"));
}

TEST_CASE("values that share or hold themselves neither blow up nor leak") {
  // A tree of 2^60 leaves in 60 shared lists.
  const std::string shared = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}";
  CHECK(names(error_of(shared + "{{ n.x }}"), "max_"));
  CHECK(names(error_of(shared + "{{ n.x | tojson }}"), "max_"));
  CHECK(names(error_of(shared + "{{ n.x == [n.x[0], n.x[1]] and n.x | string }}"), "max_"));
  CHECK(names(error_of("{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% endfor %}"),
              "max_depth = 200"));
  CHECK(names(error_of("{% set n = namespace(x=[]) %}{% for i in range(5000) %}{% set n.x = [n.x.index] %}{% endfor %}"),
              "max_depth = 200"));
  CHECK(names(error_of("{% set n = namespace(x=1) %}{% for i in range(5000) %}{% for j in [n.x] %}{% set n.x = loop %}"
                       "{% endfor %}{% endfor %}"),
              "max_depth = 200"));
  CHECK(output_of("{% set n = namespace() %}{% set n.n = n %}{% set n.l = [n] %}{{ n.n.l[0].n is sameas n }}") == "True");
  CHECK(output_of("{% set n = namespace() %}{% macro m() %}{{ n.m is defined }}{% endmacro %}{% set n.m = m %}{{ n.m() }}") ==
        "True");
  CHECK(output_of("{% set n = namespace() %}{% for i in range(50000) %}{% set o = namespace(n=n) %}{% set n = o %}"
                  "{% endfor %}ok") == "ok");
}

TEST_CASE("indexing and searching long texts is not quadratic") {
  const int64_t n = 200'000;
  const Value context = Value::dict({{"c", Value::text(times("é", n), true)}, {"a", Value::text(std::string(n, 'a'))}});
  CHECK(output_of("{{ c[100000] }}{{ c[-1] }}{{ c[::-1] | length }}", context) == "éé200000");
  CHECK(names(error_of("{% for i in range(100000) %}{% set x = c[i + 90000] %}{% endfor %}", context), "max_steps"));
  CHECK(output_of("{{ ((a ~ 'b') in a) }}{{ a.find(a[1:] ~ 'b') }}{{ a.rfind('b' ~ a[1:]) }}", context) == "False-1-1");
}

TEST_CASE("strange bytes are carried through") {
  const std::string bytes = std::string("\xFF\xC3(\xE2\x82\xF0\x9F\x99\0z", 10);
  const Value context = Value::dict({{"c", Value::text(bytes, true)}});
  CHECK(output_of("{{ c }}", context) == bytes);
  CHECK(output_of("{{ c[::-1][::-1] }}", context) == bytes);
  CHECK(output_of("{{ c | list | join }}", context) == bytes);
  output_of("{{ c | tojson }}{{ [c] }}{{ c.upper() }}{{ c.strip() }}{{ c.split() }}{{ c | title }}", context);
}

TEST_CASE("break outside of a loop and unsupported statements are named") {
  CHECK(error_of("\n{% break %}") == "line 2: 'break' outside of a loop");
  CHECK(error_of("{% include 'x' %}") == "line 1: statement 'include' is not supported in chat templates");
  CHECK(error_of("{{ 9223372036854775807 + 1 }}") == "line 1: integer result does not fit in 64 bits");
  CHECK(names(error_of("{{ 99999999999999999999 }}"), "does not fit in 64 bits"));
  CHECK(names(error_of("{{ -9223372036854775807 - 1 - 1 }}"), "64 bits"));
  CHECK(output_of("{{ (-9223372036854775807 - 1) % -1 }}") == "0");
}

TEST_CASE("one template renders in many threads") {
  const auto parsed = Template::parse("{% for i in range(50) %}{{ c }}{{ i }}{{ c | upper }}{% endfor %}");
  REQUIRE(parsed.ok());
  const Value context = Value::dict({{"c", Value::text("x", true)}});
  std::vector<std::string> results(8);
  std::vector<std::thread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&] { result = (*parsed)->render(context, 0)->text(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& result : results) CHECK(result == results[0]);
  CHECK(results[0].size() > 100);
}

TEST_CASE("strftime_now shows the given time") {
  const auto parsed = Template::parse("{{ strftime_now('%Y-%m') }}");
  REQUIRE(parsed.ok());
  CHECK((*parsed)->render(Value::dict({}), 1'700'000'000)->text() == "2023-11");
}

}  // namespace tandem::jinja
