"""The `tandem` command on a real model: tools without a server, and the verbs that talk to one."""
import hashlib
import http.server
import json
import math
import os
import subprocess
import tarfile
import threading
import time

import pytest
from conftest import BIN, GEMMA3, SMOLLM2

TANDEM = os.path.join(BIN, "tandem")
GPL3 = "/usr/share/common-licenses/GPL-3"
GOLDEN = os.path.join(os.path.dirname(__file__), "../golden/reference")


def tandem(*args, text=None, code=0, timeout=300, env=None):
    done = subprocess.run([TANDEM, *map(str, args)], input=text, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(env or {})})
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout, done.stderr


def golden(name):
    with open(os.path.join(GOLDEN, name + ".json"), encoding="utf-8") as f:
        return json.load(f)


VERBS = ["serve", "chat", "inspect", "tokenize", "bench", "eval", "doctor", "log", "status", "bundle", "degrade", "quantize"]


def test_help_lists_the_verbs_and_each_verb_explains_itself():
    out, _ = tandem("--help")
    for verb in VERBS:
        assert f"\n  {verb} " in out
        text, _ = tandem(verb, "--help")
        assert "Usage:" in text or "Options:" in text
    assert tandem("--version")[0].startswith("tandem ")


@pytest.mark.parametrize("args", [[], ["frobnicate"], ["bench"], ["log", "--limit", "0"], ["log", "--status", "odd"],
                                  ["eval", "--model", "x"], ["serve", "--port", "70000"]])
def test_wrong_use_is_exit_code_2(args):
    _, err = tandem(*args, code=2)
    assert err.strip()


def test_tokenize_equals_the_golden_ids():
    for name, model in [("smollm2", SMOLLM2), ("gemma3", GEMMA3)]:
        for case in [c for c in golden(name)["tokenize"] if "\0" not in c["text"]][:12]:
            out, _ = tandem("tokenize", "--model", model, "--ids", "--no-special", "-", text=case["text"])
            assert [int(i) for i in out.split()] == case["ids"], case["text"]
    case = golden("smollm2")["tokenize_parse_special"][0]
    out, _ = tandem("tokenize", "--model", SMOLLM2, "--ids", "--parse-special", case["text"])
    assert [int(i) for i in out.split()] == case["ids"]
    out, _ = tandem("tokenize", "--model", GEMMA3, "Hello 🙂")
    lines = out.strip().split("\n")
    assert lines[0].split() == ["2", '"<bos>"'] and '"Hello"' in lines[1]


def test_tokenize_refuses_what_is_not_utf8():
    done = subprocess.run([TANDEM, "tokenize", "--model", SMOLLM2, "-"], input=b"ab\xff", capture_output=True)
    assert done.returncode == 78 and b"UTF-8 at byte 2" in done.stderr


def test_inspect():
    out, _ = tandem("inspect", "--model", SMOLLM2)
    assert "architecture llama" in out and "Q4_1" in out and "smollm" in out
    d = json.loads(tandem("inspect", "--model", SMOLLM2, "--json")[0])
    assert d["version"] == 3 and d["architecture"] == "llama"
    assert d["model"]["served"] and d["model"]["context_tokens"] == 8192 and d["model"]["layers"] == 30
    assert d["vocabulary"]["served"] and d["vocabulary"]["tokens"] == 49152 and d["vocabulary"]["chat_template"]
    assert sum(t["tensors"] for t in d["tensors_by_type"].values()) == len(d["tensors"]) == 272
    assert sum(t["bytes"] for t in d["tensors"]) <= os.path.getsize(SMOLLM2)
    assert d["keys"]["llama.rope.freq_base"]["value"] == 100000.0
    g = json.loads(tandem("inspect", "--model", GEMMA3, "--json")[0])
    assert g["architecture"] == "gemma3" and not g["vocabulary"]["chat_template"]


@pytest.mark.parametrize("verb", ["inspect", "tokenize", "bench", "doctor"])
def test_bad_model_files_get_a_message(tmp_path, verb):
    extra = ["hello"] if verb == "tokenize" else []
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"<!DOCTYPE html>" * 100)
    out, err = tandem(verb, "--model", bad, *extra, code=1 if verb == "doctor" else 78)
    assert "bad.gguf" in out + err and "GGUF" in out + err
    with open(SMOLLM2, "rb") as f:
        bad.write_bytes(f.read(5_000_000))
    out, err = tandem(verb, "--model", bad, *extra, code=1 if verb == "doctor" else 78)
    assert "truncated" in out + err
    _, err = tandem(verb, "--model", tmp_path / "none.gguf", *extra, code=1)
    assert "none.gguf: No such file" in err
    _, err = tandem(verb, "--model", tmp_path, *extra, code=1)
    assert "is a directory" in err


def test_eval_matches_the_reference_perplexity():
    reference = golden("smollm2")["gpl3_first_tokens"]
    n = reference["n_tokens_with_bos"]
    out, _ = tandem("eval", "--model", SMOLLM2, "--text", GPL3, "--tokens", n, "--json")
    d = json.loads(out)
    assert d["tokens"] == n and d["scored"] == n - 1
    assert abs(d["perplexity"] / reference["perplexity_float32"] - 1) < 0.01
    assert math.isclose(math.exp(d["mean_nll"]), d["perplexity"], rel_tol=1e-4)
    _, err = tandem("eval", "--model", SMOLLM2, "--text", "/nonexistent", code=1)
    assert "/nonexistent" in err


def test_bench_prints_exactly_the_agreed_json():
    out, err = tandem("bench", "--model", SMOLLM2, "--prompt", 32, "--gen", 4, "--batch", "1,3", "--repeat", 1, "--json")
    assert out.count("\n") == 1 and "batch 3" in err
    d = json.loads(out)
    assert list(d) == ["results", "peak_memory_bytes"]
    assert [r["batch"] for r in d["results"]] == [1, 3]
    for r in d["results"]:
        assert list(r) == ["batch", "prompt", "gen", "prefill_tokens_per_s", "decode_tokens_per_s",
                           "read_bandwidth_share", "int8_peak_share"]
        assert r["prompt"] == 32 and r["gen"] == 4
        assert r["prefill_tokens_per_s"] > 0 and r["decode_tokens_per_s"] > 0
        assert 0 < r["read_bandwidth_share"] < 1.5 and 0 < r["int8_peak_share"] < 1.5
    assert d["peak_memory_bytes"] > 90_000_000
    out, _ = tandem("bench", "--model", SMOLLM2, "--prompt", 16, "--gen", 2, "--repeat", 1)
    assert "prefill tokens/s" in out and "GB/s" in out
    _, err = tandem("bench", "--model", SMOLLM2, "--prompt", 9000, code=78)
    assert "8192" in err
    _, err = tandem("bench", "--model", SMOLLM2, "--batch", "0", code=78)
    assert "--batch" in err and "1024" in err


def test_doctor(tmp_path):
    config = tmp_path / "tandem.toml"  # a port that nobody else can hold
    config.write_text('[server]\nlisten = "127.0.0.1:0"\n')
    out, _ = tandem("doctor", "--model", SMOLLM2, "--state", tmp_path, "--config", config)
    for word in ["configuration", "state folder", "port", "user keys", "admin key", "clock", "graphics device",
                 "model file", hashlib.sha256(open(SMOLLM2, "rb").read()).hexdigest(), "features", "kernels", "matmul Q4_1", "attention", "memory bandwidth", "integer peak",
                 "chat template", "topology", "cpu quota", "huge pages", "a team of", "MiB weights", "MiB KV pool"]:
        assert word in out, word
    assert "\nfail" not in out
    for line, after in zip(out.split("\n"), out.split("\n")[1:]):
        assert not line.startswith(("warn", "fail")) or "remedy: " in after, line
    (tmp_path / "small.toml").write_text('[server]\nlisten = "127.0.0.1:0"\n[workers]\nmemory_budget_bytes = 100000000\n'
                                         "[cache]\nkv_pool_bytes = 67108864\n")
    out, _ = tandem("doctor", "--model", SMOLLM2, "--state", tmp_path, "--config", tmp_path / "small.toml", code=1)
    assert "fail  memory " in out and "64.0 MiB KV pool" in out and "100000000" in out
    out, _ = tandem("doctor", "--force-isa", "avx9000", "--state", tmp_path, code=1)
    assert "\nfail  kernels" in out and "remedy" in out
    (tmp_path / "file").write_text("x")
    out, _ = tandem("doctor", "--state", tmp_path / "file", code=1)
    assert "fail  state folder" in out


def test_tools_run_in_the_sandbox():
    """The worker reads its model from a descriptor: its name means nothing to it."""
    odd = "/proc/self/fd/0"
    with open(SMOLLM2, "rb") as f:
        done = subprocess.run([TANDEM, "inspect", "--model", odd, "--json"], stdin=f, capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["file"] == "0"


def test_chat_and_log_without_a_server():
    for args in [["chat", "hi"], ["log"]]:
        _, err = tandem(*args, "--url", "http://127.0.0.1:1", code=1)
        assert "no server answers" in err and "tandem serve --model" in err
    _, err = tandem("log", "--db", "/nonexistent.db", code=1)
    assert "/nonexistent.db" in err
    _, err = tandem("log", "--url", "http://127.0.0.1:1", "--since", "yesterday", code=1)
    assert "--since" in err


def test_chat_streams_an_answer(appliance):
    out, err = tandem("chat", "--url", appliance.url, "--temperature", 0, "--max-tokens", 12, "What", "is", "2+2?")
    assert out.strip()
    whole = appliance.client().chat.completions.create(
        model=appliance.model_name, temperature=0, max_tokens=12, messages=[{"role": "user", "content": "What is 2+2?"}])
    assert out.rstrip("\n") == whole.choices[0].message.content.rstrip("\n")
    assert ("token limit" in err) == (whole.choices[0].finish_reason == "length")
    out, _ = tandem("chat", "--url", appliance.url, "--temperature", 0, "--max-tokens", 4, text="Say one.\nSay two.\n")
    assert len(out.strip()) > 0
    _, err = tandem("chat", "--url", appliance.url, "--temperature", 2, "--max-tokens", 1 << 23, "hi", code=1)
    assert "400" in err


@pytest.fixture
def foreign():
    """A server that answers everything with its `status` and `body`."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(server.status)
            self.send_header("Content-Length", str(len(server.body)))
            self.end_headers()
            self.wfile.write(server.body)

        do_POST = do_GET

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.status, server.body = 200, b""
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_model_gives_a_terminal_no_orders(foreign):
    foreign.body = b'data: {"choices":[{"delta":{"content":"a\\u001b]52;c;eA\\u0007\\u009b1m\\n\\tb"}}]}\n\ndata: [DONE]\n\n'
    out, _ = tandem("chat", "--url", foreign.url, "hi")
    assert out == "a\x1b]52;c;eA\a\x9b1m\n\tb\n"  # to a file or a pipe: as it is
    terminal, inside = os.openpty()
    subprocess.run([os.path.join(BIN, "tandem"), "chat", "--url", foreign.url, "hi"], stdout=inside, check=True, timeout=60)
    os.close(inside)
    assert os.read(terminal, 1000) == b"a?]52;c;eA??1m\r\n\tb\r\n"
    os.close(terminal)


@pytest.mark.parametrize("body", [b"", b"7", b'{"error":3}', b'{"error":{"message":[]}}', b'{"workers":[7,{"role":5}],"readiness":{"state":[]}}',
                                  b'{"data":[3,{"id":[]}]}', b'data: {"choices":3}\n\n', b'data: {"error":null}\n\n', b"\xff\xfe"])
@pytest.mark.parametrize("status", [200, 500])
def test_servers_that_are_not_ours_end_no_verb_by_a_signal(foreign, body, status):
    foreign.status, foreign.body = status, body
    for args in [["chat", "hi"], ["status"], ["log"], ["degrade", "set", "shed"]]:
        done = subprocess.run([os.path.join(BIN, "tandem"), *args, "--url", foreign.url], capture_output=True, timeout=60)
        assert 0 <= done.returncode <= 2, (args, done.returncode, done.stderr)
        assert done.returncode == 0 or done.stderr.startswith(b"tandem "), (args, done.stderr)


def test_log_shows_rows_from_server_and_file(appliance):
    tandem("chat", "--url", appliance.url, "--temperature", 0, "--max-tokens", 3, "hello")
    end = time.time() + 10
    while not (rows := appliance.rows()) or rows[0]["completion_tokens"] != 3:  # rows of earlier tests come first
        assert time.time() < end, rows[:2]
        time.sleep(0.05)
    out, _ = tandem("log", "--url", appliance.url, "--limit", 5)
    assert out.startswith("RECEIVED") and rows[0]["id"] in out
    served = json.loads(tandem("log", "--url", appliance.url, "--json", "--limit", 1, "--since", "1h")[0])["data"]
    stored = json.loads(tandem("log", "--db", os.path.join(appliance.state, "requests.db"), "--json", "--limit", 1)[0])["data"]
    assert served == stored and served[0]["endpoint"] == "chat" and served[0]["completion_tokens"] == 3
    out, err = tandem("log", "--url", appliance.url, "--status", "failed")
    assert out == "" and "no request matches" in err


def test_status_tells_what_the_server_does(appliance):
    out, _ = tandem("status", "--url", appliance.url)
    for word in ["ready:", "model " + appliance.model_name, "queue   running", "pages used", "worker  both ready", "heat", "disk"]:
        assert word in out, out
    d = json.loads(tandem("status", "--url", appliance.url, "--json")[0])
    assert d["readiness"]["state"] == "ready" and d["model"]["name"] == appliance.model_name
    for name, sensor in d["sensors"].items():
        assert (sensor["value"] is None) == (sensor["state"] in ("absent", "broken")), (name, sensor)
    watch = subprocess.Popen([TANDEM, "status", "--url", appliance.url, "--watch"], stdout=subprocess.PIPE, text=True)
    lines = [watch.stdout.readline() for _ in range(2 * out.count("\n"))]  # two rounds
    watch.kill()
    watch.wait()
    assert sum(line.startswith("ready:") for line in lines) == 2
    _, err = tandem("status", "--url", "http://127.0.0.1:1", code=1)
    assert "no server answers" in err


def bundle_files(path):
    with tarfile.open(path) as tar:
        assert all(m.isfile() and m.mode == 0o600 for m in tar.getmembers())
        return {os.path.basename(m.name): tar.extractfile(m).read().decode() for m in tar.getmembers()}


def test_bundle_holds_what_support_needs_and_no_text(start, tmp_path):
    keys, admin = tmp_path / "keys", tmp_path / "admin"
    keys.write_text("app:" + hashlib.sha256(b"app-secret").hexdigest() + "\n")
    admin.write_text(hashlib.sha256(b"admin-secret").hexdigest() + "\n")
    a = start(settings=["log.text=true", "log.flush_ms=20", f"auth.user_keys_file={keys}", f"auth.admin_key_file={admin}"])
    status, body, _ = a.post("/v1/completions", {"prompt": "A very private xyzzy prompt", "max_tokens": 5, "ignore_eos": True},
                             {"Authorization": "Bearer app-secret"})
    assert status == 200, body
    time.sleep(0.3)
    path = tmp_path / "b.tar.gz"
    out, err = tandem("bundle", "--url", a.url, "--key", "admin-secret", "--output", path)
    assert out.strip() == str(path) and err == "" and os.stat(path).st_mode & 0o777 == 0o600
    files = bundle_files(path)
    assert set(files) == {"README.txt", "config.toml", "status.json", "metrics.txt", "requests.json", "doctor.txt"}
    assert json.loads(files["status.json"])["readiness"]["state"] == "ready"
    assert "llm_requests_total" in files["metrics.txt"] and "[server]" in files["config.toml"]
    assert "memory bandwidth" in files["doctor.txt"]
    assert json.loads(files["requests.json"])["data"][0]["completion_tokens"] == 5
    everything = "".join(files.values())
    for secret in ["xyzzy", "app-secret", "admin-secret", hashlib.sha256(b"admin-secret").hexdigest()]:
        assert secret not in everything, secret
    _, err = tandem("bundle", "--url", a.url, "--key", "admin-secret", "--output", path, code=1)
    assert "cannot create" in err  # nothing is overwritten
    # No server: what the files and the machine tell, and a list of what is missing.
    a.stop()
    path = tmp_path / "c.tar.gz"
    _, err = tandem("bundle", "--url", a.url, "--state", a.state, "--output", path)
    files = bundle_files(path)
    assert {"missing.txt", "requests.json", "doctor.txt"} <= set(files) and "no server answers" in files["missing.txt"]
    assert "xyzzy" not in "".join(files.values()) and json.loads(files["requests.json"])["data"]
    assert "status.json" in err
