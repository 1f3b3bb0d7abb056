"""The examples of docs/api.md and README.md, as they stand there, against a real appliance: only its address is put in."""
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
BOX = re.compile(r"http://127\.0\.0\.1:8080")


def examples(page, begin):
    text = open(os.path.join(ROOT, page), encoding="utf-8").read()
    return [code for code in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) if BOX.search(code) and code.startswith(begin)]


def run(appliance, code, *command):
    done = subprocess.run([*command, BOX.sub(appliance.url, code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", ["docs/api.md", "README.md"])
def test_python(appliance, page):
    found = examples(page, "from openai")
    assert len(found) == 1
    said = run(appliance, found[0], sys.executable, "-c")
    assert len(said) > 20
    if page.startswith("docs"):
        assert "CompletionUsage(" in said and "Logprobs(" in said


@pytest.mark.parametrize("page, n", [("docs/api.md", 1), ("docs/install.md", 1)])
def test_shell(appliance, page, n):
    found = examples(page, ("curl", "tandem chat"))
    assert len(found) == n
    for code in found:
        commands = [c for c in re.split(r"\n(?=curl|tandem)", code) if c.startswith("curl")]
        assert commands
        for command in commands:
            said = run(appliance, command.replace("curl", "curl -fsS", 1), "sh", "-c")
            assert any(part in said for part in ("data: [DONE]", '"tokens"', '"choices"')), said
