#!/usr/bin/env python3
"""Renders tests/jinja's templates with jinja2, set up as transformers sets it up.

Without arguments: writes tests/jinja/expected.json. With --check: renders again and compares with that file;
exits 77 (skipped) where jinja2 cannot be imported.
"""

import datetime
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1] / "jinja"
EXPECTED = ROOT / "expected.json"


def make_environment():
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment


def render(environment, source, context):
    """{"output": text} or {"error": kind, "message": text, "line": number or None}."""
    import jinja2

    try:
        return {"output": environment.from_string(source).render(**context)}
    except jinja2.TemplateSyntaxError as error:
        return {"error": "syntax", "message": error.message, "line": error.lineno}
    except jinja2.UndefinedError as error:
        return {"error": "undefined", "message": error.message, "line": None}
    except jinja2.exceptions.SecurityError as error:
        return {"error": "security", "message": error.message, "line": None}
    except jinja2.TemplateError as error:
        kind = "raised" if type(error) is jinja2.TemplateError else "other"
        return {"error": kind, "message": error.message, "line": None}
    except Exception as error:  # what Python itself raises inside a template
        return {"error": "python", "message": str(error), "line": None}


def render_all():
    environment = make_environment()
    contexts = json.loads((ROOT / "contexts.json").read_text())
    cases = []
    for path in sorted((ROOT / "templates").glob("*.jinja")):
        for name, context in contexts.items():
            result = render(environment, path.read_text(), context)
            cases.append({"template": path.name, "context": name, **result})
    for error in json.loads((ROOT / "errors.json").read_text()):
        result = render(environment, error["source"], contexts["one_user"])
        cases.append({"source": error["source"], "name": error["name"], "context": "one_user", **result})
    return cases


def main():
    try:
        import jinja2  # noqa: F401
    except ImportError:
        print("skipped: jinja2 cannot be imported (Debian: python3-jinja2)")
        return 77
    cases = render_all()
    if sys.argv[1:] != ["--check"]:
        EXPECTED.write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")
        print(f"{len(cases)} cases written")
        return 0
    different = [c for c, e in zip(cases, json.loads(EXPECTED.read_text())) if c != e]
    for case in different:
        print("differs:", json.dumps(case, ensure_ascii=False)[:500])
    print(f"{len(cases)} cases rendered, {len(different)} differ")
    return 1 if different or len(cases) != len(json.loads(EXPECTED.read_text())) else 0


if __name__ == "__main__":
    sys.exit(main())
