"""How each program is measured: prefill of 512 tokens, decode of 128 by one stream, and clients at once. All get the same token
ids, threads and model file, greedy sampling, no end at EOS; each server is fresh, so that no prompt comes from a cache."""
import concurrent.futures
import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

import setup_peers

PREFILL, DECODE, PROMPT, NEW = 512, 128, 128, 64
HERE = os.path.dirname(os.path.abspath(__file__))


def prompt_ids(n, seed):
    """Ids below 20000 are ordinary tokens in every vocabulary measured."""
    return [1000 + (seed * 131 + i * 17) % 19000 for i in range(n)]


def output_of(command):
    command[0] = os.path.abspath(command[0])
    with tempfile.TemporaryDirectory() as folder:  # where a program may leave files
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


# --- HTTP -------------------------------------------------------------------------------------------------

def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def complete(url, seed, n_prompt=PROMPT, n_new=NEW):
    body = {"prompt": prompt_ids(n_prompt, seed), "max_tokens": n_new, "temperature": 0, "ignore_eos": True}
    made = post(url + "/v1/completions", body)["usage"]["completion_tokens"]
    if made != n_new:
        raise RuntimeError(f"{made} tokens came, {n_new} were asked for")
    return made


class Server:
    """A server process that answers, ended by close(). `pattern` is the log line of a bound socket, its group 1 the address
    where `url` isn't given."""

    def __init__(self, command, pattern, url=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.folder = tempfile.TemporaryDirectory()  # where a server may leave files
        command[0] = os.path.abspath(command[0])
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, cwd=self.folder.name)
        self.deadline = time.monotonic() + 300
        try:
            self.address = self.wait_for_address(command[0], pattern, url)
            self.wait_for_answer()  # listening comes before the model is ready
        except BaseException:
            self.close()
            raise

    def wait_for_address(self, name, pattern, url):
        while True:
            with open(self.log.name, errors="replace") as f:
                text = f.read()
            found = re.search(pattern, text)
            if found:
                return url or f"http://{found.group(1)}"
            if self.process.poll() is not None or time.monotonic() > self.deadline:
                raise RuntimeError(f"{name} doesn't listen: {text[-1500:]}")
            time.sleep(0.05)

    def wait_for_answer(self):
        while True:
            try:
                return complete(self.address, 9999, 16, 4)
            except OSError:
                if self.process.poll() is not None or time.monotonic() > self.deadline:
                    raise
                time.sleep(0.1)

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def clients(address, n):
    """Output tokens a second of n requests at once, from the first sent to the last answered."""
    started = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        tokens = sum(pool.map(lambda i: complete(address, i), range(n)))
    return tokens / (time.monotonic() - started)


# --- the programs -----------------------------------------------------------------------------------------

class Llama:
    """llama.cpp or ik_llama.cpp: llama-bench, and llama-server with a slot for each client. Of several ways to start it
    the better one counts for each figure, and the one with the better prefill serves the clients. A way is () or a switch
    and its value; llama-server knows it without value."""

    def __init__(self, name, work, package, ways=((),)):
        self.name, self.version = name, f"{package[0]} {package[1]}"
        self.binaries, self.ways, self.way = setup_peers.build_llama(work, package), ways, ways[0]

    def bench(self, model, threads, way):
        out = output_of([os.path.join(self.binaries, "llama-bench"), "-m", model, "-p", str(PREFILL), "-n", str(DECODE),
                         "-t", str(threads), "-r", "1", "-o", "json", *way])
        rows = json.loads(out[out.index("["):])
        return {"prefill": next(r["avg_ts"] for r in rows if r["n_gen"] == 0),
                "decode": next(r["avg_ts"] for r in rows if r["n_prompt"] == 0)}

    def measure(self, model, threads, what):
        figures = {}
        if what == "speed":
            by_way = {way: self.bench(model, threads, way) for way in self.ways}
            self.way = max(by_way, key=lambda way: by_way[way]["prefill"])
            figures = {key: max(f[key] for f in by_way.values()) for key in ("prefill", "decode")}
        if what == "16":
            figures["clients16"] = self.serve_clients(model, threads)
        return figures

    def serve_clients(self, model, threads):
        """ik_llama.cpp 0.1.5 aborts on an assertion of its flash attention with some batches; then once more without."""
        for without in ((), ("-no-fa",)):
            with self.serve(model, threads, 16, 4096, without) as server:
                try:
                    return clients(server.address, 16)
                except OSError as e:
                    setup_peers.say(f"  {self.name}: the server ended ({e})")
        raise RuntimeError("the server ended twice under 16 clients")

    def serve(self, model, threads, n_slots, context, extra=()):
        with socket.socket() as probe:  # another port each time: the last one may rest in TIME_WAIT
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        return Server([os.path.join(self.binaries, "llama-server"), "-m", model, "-t", str(threads), "-np", str(n_slots),
                       "-c", str(context), "--port", str(port), "--host", "127.0.0.1", *self.way[:1], *extra], "listening",
                      f"http://127.0.0.1:{port}")


class OpenVino:
    """In its own process and without HTTP, all prompts handed over at once."""
    name = "OpenVINO GenAI"

    def __init__(self, work):
        self.version, self.python = " ".join(setup_peers.OPENVINO), setup_peers.openvino_python(work)

    def measure(self, model, threads, what):
        wanted = {"warm_up": prompt_ids(64, 9999)}
        if what == "speed":
            wanted |= {"prefill": prompt_ids(PREFILL, 100), "decode": DECODE}
        if what == "16":
            wanted["clients"] = {"prompts": [prompt_ids(PROMPT, i) for i in range(16)], "new": NEW}
        out = output_of([self.python, os.path.join(HERE, "openvino_runner.py"), model, str(threads), json.dumps(wanted)])
        return json.loads(out.splitlines()[-1])


class Tandem:
    name = "Tandem"

    def __init__(self, binaries):
        self.binaries = binaries
        self.version = output_of([os.path.join(binaries, "tandem"), "--version"]).strip()
        self.state = tempfile.TemporaryDirectory()

    def bench(self, model, threads, prompt, gen):
        out = output_of([os.path.join(self.binaries, "tandem"), "bench", "--model", model, "--prompt", str(prompt), "--gen", str(gen),
                         "--batch", "1", "--repeat", "1", "--threads", str(threads), "--json"])
        return json.loads(out)["results"][0]

    def measure(self, model, threads, what):
        figures = {}
        if what == "speed":
            row = self.bench(model, threads, PREFILL, 1)
            figures |= {"prefill": row["prefill_tokens_per_s"], "int8_share": row["int8_peak_share"]}
            row = self.bench(model, threads, 1, DECODE)
            figures |= {"decode": row["decode_tokens_per_s"], "read_share": row["read_bandwidth_share"]}
        else:
            with self.serve(model, threads, ["batch.max_batch_size=64"]) as server:
                figures[f"clients{what}"] = clients(server.address, int(what))
        return figures

    def serve(self, model, threads, settings=()):
        """`settings` are section.key=value strings. State and repacked weights live as long as this object."""
        command = [os.path.join(self.binaries, "tandem"), "serve", "--model", model, "--port", "0", "--state", self.state.name]
        for setting in (f"cpu.threads={threads}", *settings):
            command += ["--set", setting]
        return Server(command, r"listening address=([0-9.:]+)")
