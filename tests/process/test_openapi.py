"""The document at /openapi.json against the server: schemathesis makes requests from it, right and wrong ones, and holds
every answer against it. What orders the appliance about has a run of its own, as a drained one answers nothing else."""
import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def small(start):
    # Short answers whatever is asked for; a path of each kind still runs.
    return start(settings=["model.context_tokens=96", "limits.max_choices=2", "log.flush_ms=50"])


# 504: a drawn `timeout_s` that passed before the first token, which is what it asks for.
ORDERS = "^/admin/(drain|undrain|reload|restart|degrade)"
CONFIG = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]\n'


def run(folder, url, seed, examples, *more):
    (folder / "schemathesis.toml").write_text(CONFIG)
    return subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "--config-file", str(folder / "schemathesis.toml"), "run", url + "/openapi.json", "--seed", str(seed), "--max-examples", str(examples),
         "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
         "--exclude-path-regex", "^/status/events", "--request-timeout", "60", "--no-color", *more],
        capture_output=True, text=True, timeout=600)


def test_schemathesis_finds_nothing(small, tmp_path):
    done = run(tmp_path, small.url, int(os.environ.get("TANDEM_SCHEMA_SEED", "1")), int(os.environ.get("TANDEM_SCHEMA_EXAMPLES", "12")),
               "--exclude-path-regex", ORDERS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    document = json.loads(small.get("/openapi.json")[1])
    assert len(document["paths"]) > 15
    small.wait_idle()


def test_schemathesis_finds_nothing_in_orders_either(small, tmp_path):
    done = run(tmp_path, small.url, 1, 8, "--include-path-regex", ORDERS)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    for undo, body in (("undrain", {}), *(("degrade", {"rung": r, "pin": "clear"}) for r in ("logprobs", "batch", "tokens", "shed"))):
        status, text, _ = small.post(f"/admin/{undo}", body)
        assert status == 200, text
    small.wait_ready()
    assert small.client().completions.create(model=small.model_name, prompt="Hello", max_tokens=2).choices[0].text


def test_a_planted_fault_is_found(tmp_path):
    """The same checks must fail on a server that answers 500 to a large n."""
    import http.server
    import threading
    document = {"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": {"/v1/completions": {"post": {
        "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object", "required": ["prompt"], "properties": {
            "prompt": {"type": "string"}, "n": {"type": "integer", "minimum": 1, "maximum": 16}}}}}},
        "responses": {"200": {"description": "", "content": {"application/json": {}}}, "4XX": {"description": "", "content": {"application/json": {}}}}}}}}

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.answer(200, json.dumps(document).encode())

        def do_POST(self):
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                n = json.loads(text)["n"]
            except Exception:
                n = 1
            self.answer(500 if isinstance(n, int) and n > 8 else 200, b"{}")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    done = run(tmp_path, f"http://127.0.0.1:{server.server_address[1]}", 1, 12)
    server.shutdown()
    assert done.returncode != 0 and "500" in done.stdout, done.stdout[-3000:]
