#!/usr/bin/env python3
"""Tandem beside llama.cpp on this machine, same model file, same threads, runs interleaved; medians and ratios.

llama.cpp's sources come out of the PyPI sdist llama-cpp-python (pinned) and are built natively into --work, once.
  prefill 512 / decode 128: `llama-bench` against `tandem bench`
  16 clients, 128-token prompts, 64 new tokens each, at once: `llama-server` against `tandem serve`, the same client
Not part of tests/run_all. Example:
  packaging/quickstart --once hi && tests/bench/peers/llama_cpp.py --model ~/.cache/tandem/models/SmolLM2-135M-Instruct.Q4_1.gguf
"""
import argparse
import concurrent.futures
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request

VERSION = "0.3.36"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")


def say(text):
    print(text, file=sys.stderr, flush=True)


def build_peer(work):
    """Folder of llama-bench and llama-server."""
    os.makedirs(work, exist_ok=True)
    found = glob.glob(os.path.join(work, "**/build/bin/llama-server"), recursive=True)
    if found:
        return os.path.dirname(found[0])
    say("fetching and building llama.cpp (several minutes)")
    venv = os.path.join(work, "venv")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [os.path.join(venv, "bin/pip"), "-q"]
    subprocess.run([*pip, "install", "scikit-build-core"], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", work,
                    f"llama-cpp-python=={VERSION}"], check=True)
    with tarfile.open(glob.glob(os.path.join(work, "llama_cpp_python-*.tar.gz"))[0]) as archive:
        archive.extractall(work, filter="data")
    source = glob.glob(os.path.join(work, "llama_cpp_python-*/vendor/llama.cpp"))[0]
    build = os.path.join(source, "build")
    subprocess.run(["cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                    "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"], check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", build, "--target", "llama-bench", "llama-server"], check=True, stdout=sys.stderr)
    return os.path.join(build, "bin")


def bench_llama(binaries, model, threads):
    out = subprocess.run([os.path.join(binaries, "llama-bench"), "-m", model, "-p", "512", "-n", "128", "-t", str(threads),
                          "-r", "1", "-o", "json"], check=True, capture_output=True, text=True).stdout
    rows = json.loads(out)
    return {"prefill": next(r["avg_ts"] for r in rows if r["n_prompt"]), "decode": next(r["avg_ts"] for r in rows if r["n_gen"])}


def bench_tandem(binaries, model, threads):
    out = subprocess.run([os.path.join(binaries, "tandem"), "bench", "--model", model, "--prompt", "512", "--gen", "128", "--batch", "1",
                          "--threads", str(threads), "--json"], check=True, capture_output=True, text=True).stdout
    row = json.loads(out)["results"][0]
    return {"prefill": row["prefill_tokens_per_s"], "decode": row["decode_tokens_per_s"]}


def client(url, n):
    """128-token prompt (ids, so that both get the same), 64 new tokens."""
    prompt = [1000 + (n * 131 + i * 17) % 20000 for i in range(128)]
    body = {"prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)["usage"]["completion_tokens"]


def sixteen_clients(command, pattern, url):
    """Output tokens per second of 16 requests at once, from the first sent to the last answered."""
    log = tempfile.NamedTemporaryFile("w+", suffix=".log")
    server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            text = open(log.name, errors="replace").read()
            if m := re.search(pattern, text):
                address = url or f"http://{m.group(1)}"
                break
            if server.poll() is not None:
                raise RuntimeError(text[-2000:])
            time.sleep(0.1)
        for _ in range(600):
            try:
                client(address, 99)
                break
            except OSError:
                time.sleep(0.1)
        started = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            tokens = sum(pool.map(lambda n: client(address, n), range(16)))
        return tokens / (time.monotonic() - started)
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", default=os.path.join(ROOT, "build/peers"), help="where llama.cpp is built")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/release/bin"), help="folder of tandem")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for the figures")
    a = parser.parse_args()
    peer = build_peer(a.work)
    figures = {"llama.cpp": {"prefill": [], "decode": [], "clients": []}, "tandem": {"prefill": [], "decode": [], "clients": []}}
    for i in range(a.rounds):
        say(f"round {i + 1} of {a.rounds}")
        for name, values in (("llama.cpp", bench_llama(peer, a.model, a.threads)), ("tandem", bench_tandem(a.bin, a.model, a.threads))):
            for key, value in values.items():
                figures[name][key].append(value)
        figures["llama.cpp"]["clients"].append(sixteen_clients(
            [os.path.join(peer, "llama-server"), "-m", a.model, "-t", str(a.threads), "-np", "16", "-c", "4096", "--port", "18231",
             "--host", "127.0.0.1"], r"listening", "http://127.0.0.1:18231"))
        with tempfile.TemporaryDirectory() as state:
            figures["tandem"]["clients"].append(sixteen_clients(
                [os.path.join(a.bin, "tandem"), "serve", "--model", a.model, "--port", "0", "--state", state],
                r"listening address=([0-9.:]+)", None))
    print(f"{'':14}{'prefill 512':>14}{'decode 128':>14}{'16 clients':>14}   tokens/s, median of {a.rounds}, {a.threads} threads")
    medians = {n: {k: statistics.median(v) for k, v in f.items()} for n, f in figures.items()}
    for name, m in medians.items():
        print(f"{name:14}{m['prefill']:14.1f}{m['decode']:14.1f}{m['clients']:14.1f}")
    ratio = {k: medians["tandem"][k] / medians["llama.cpp"][k] for k in medians["tandem"]}
    print(f"{'ratio':14}{ratio['prefill']:14.2f}{ratio['decode']:14.2f}{ratio['clients']:14.2f}")
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"peer": f"llama.cpp in llama-cpp-python {VERSION}", "figures": figures, "medians": medians, "ratio": ratio}, f, indent=1)


if __name__ == "__main__":
    main()
