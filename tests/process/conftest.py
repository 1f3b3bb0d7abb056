"""A real appliance for each test module: `tandem serve` with a real model, on a free port, in a scratch state folder."""
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import openai
import psutil
import pytest

BIN = os.environ.get("TANDEM_BIN_DIR", os.path.join(os.path.dirname(__file__), "../../build/release/bin"))
MODELS = os.environ.get("TANDEM_MODELS_DIR", os.path.expanduser("~/.cache/tandem/models"))
SMOLLM2 = os.path.join(MODELS, "SmolLM2-135M-Instruct.Q4_1.gguf")
GEMMA3 = os.path.join(MODELS, "gemma-3-270m-q4_k_m.gguf")


def names_once(pairs):
    """As the API's own parser: an object that has a name twice is no JSON to rely on."""
    members = dict(pairs)
    assert len(members) == len(pairs), f"a name stands twice: {[name for name, _ in pairs]}"
    return members


class Appliance:
    """One tandemd and its workers. `settings` are section.key=value strings; `prefix` is a command that runs the rest; without
    a model it serves the default of its state folder; `config` is a file."""

    def __init__(self, state, model=SMOLLM2, settings=(), wait_ready=True, prefix=(), port=0, config=None):
        self.state = str(state)
        os.makedirs(self.state, exist_ok=True)
        self.log_path = os.path.join(self.state, "tandemd.log")
        command = [*prefix, os.path.join(BIN, "tandem"), "serve", "--port", str(port), "--state", self.state]
        command += ["--model", str(model)] if model else []
        command += ["--config", str(config)] if config else []
        for setting in settings:
            command += ["--set", setting]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(self.log_path, "wb"))
        self.address = self._wait_for_address()
        self.url = f"http://{self.address}"
        if wait_ready:
            self.wait_ready()

    def _wait_for_address(self):
        end = time.time() + 30
        while time.time() < end:
            if m := re.search(r"listening address=(\S+)", self.log()):
                return m.group(1)
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"tandemd does not listen (exit {self.process.poll()}):\n{self.log()}")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def get(self, path, headers=None, timeout=30):
        """(status, body text, headers); HTTP errors are answers too."""
        request = urllib.request.Request(self.url + path, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, r.read().decode(), r.headers
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode(), e.headers

    def post(self, path, body, headers=None, timeout=120):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method="POST",
                                         headers={"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as r:
                return r.status, r.read().decode(), r.headers
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode(), e.headers

    def wait_ready(self, timeout=60):
        end = time.time() + timeout
        while time.time() < end:
            if self.get("/ready")[0] == 200:
                return
            assert self.process.poll() is None, f"tandemd ended:\n{self.log()}"
            time.sleep(0.02)
        raise AssertionError(f"not ready after {timeout} s: {self.get('/ready')[1]}\n{self.log()}")

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), max_retries=0,
                             timeout=options.pop("timeout", 120), **options)

    @property
    def model_name(self):
        return self.client().models.list().data[0].id

    def status(self):
        return json.loads(self.get("/status.json")[1], object_pairs_hook=names_once)

    def worker_pids(self):
        return [p.pid for p in psutil.Process(self.process.pid).children(recursive=True)
                if p.status() != psutil.STATUS_ZOMBIE and "tandem-worker" in " ".join(p.cmdline()[:1])]

    def kill_worker(self, sig=signal.SIGKILL):
        """Sends `sig` to every worker there is; returns how many."""
        n = 0
        for pid in self.worker_pids():
            try:
                os.kill(pid, sig)
                n += 1
            except ProcessLookupError:
                pass
        return n

    def metrics(self):
        """{'name{labels}': value} of /metrics."""
        values = {}
        for line in self.get("/metrics")[1].split("\n"):
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def rows(self, **query):
        path = "/v1/requests?" + "&".join(f"{k}={v}" for k, v in {"limit": 10000, **query}.items())
        status, body, _ = self.get(path)
        assert status == 200, body
        return json.loads(body)["data"]

    def wait_for_rows(self, n, timeout=10, **query):
        end = time.time() + timeout
        while True:
            rows = self.rows(**query)
            if len(rows) >= n or time.time() > end:
                return rows
            time.sleep(0.1)

    def wait_idle(self, timeout=15):
        """Until nothing runs or waits and all pages are back."""
        end = time.time() + timeout
        while True:
            m = self.metrics()
            busy = m.get("llm_requests_running", 0) + sum(v for k, v in m.items() if k.startswith("llm_requests_waiting"))
            used = m.get('llm_kv_pages{state="used"}', 0)
            if busy == 0 and used == 0:
                return m
            assert time.time() < end, f"still busy: running+waiting={busy} pages used={used}"
            time.sleep(0.05)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"tandemd did not end on SIGTERM:\n{self.log()[-3000:]}")
        return self.process.returncode


def sse_events(lines):
    """Parsed `data:` payloads of a raw SSE body (str or iterable of lines), '[DONE]' as is."""
    for line in (lines.split("\n") if isinstance(lines, str) else lines):
        if line.startswith("data: "):
            payload = line[6:].strip()
            yield payload if payload == "[DONE]" else json.loads(payload)


@pytest.fixture(scope="module")
def appliance(tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("state"), settings=["log.flush_ms=50"])
    yield a
    assert a.stop() == 0, a.log()[-3000:]


@pytest.fixture
def start(tmp_path):
    """start(**options) -> Appliance, stopped after the test."""
    running = []

    def make(**options):
        a = Appliance(tmp_path / f"state{len(running)}", **options)
        running.append(a)
        return a

    yield make
    for a in running:
        a.stop()


def build_shim(name, tmp_path_factory):
    """NAME.c of this folder as a library for LD_PRELOAD."""
    out = str(tmp_path_factory.mktemp("shim") / f"{name}.so")
    source = os.path.join(os.path.dirname(__file__), f"{name}.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", out, source, "-ldl"], check=True)
    return out


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    return build_shim("disk_shim", tmp_path_factory)
