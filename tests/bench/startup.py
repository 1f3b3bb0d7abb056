#!/usr/bin/env python3
"""How long a start takes: from exec of `tandem serve` to the first token of a one-token prompt.

    tests/bench/startup.py --model FILE [--bin build/release/bin] [--rounds 5] [--kinds first,warm,disk] [--set section.key=value]

Three kinds of start, interleaved: `first` (no cache of repacked weights: repacks), `warm` (cache there, its pages in memory), `disk` (cache there,
its pages and the model's dropped from memory first), the last beside a plain read of the same bytes. After each, `restart`: the worker is killed
and the next one-token prompt is timed. Medians; the same text must come out of all of them.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

KINDS = ("first", "warm", "disk")


def drop(path):
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_read_s(path):
    drop(path)
    buffer = bytearray(4 << 20)
    begin = time.monotonic()
    with open(path, "rb", buffering=0) as f:
        while f.readinto(buffer):
            pass
    return time.monotonic() - begin


def weights_files(state):
    folder = os.path.join(state, "cache")
    return [os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".weights")] if os.path.isdir(folder) else []


class Start:
    def __init__(self, args, state):
        self.log = os.path.join(state, "tandemd.log")
        command = [os.path.join(args.bin, "tandem"), "serve", "--model", args.model, "--port", "0", "--state", state]
        for setting in args.set:
            command += ["--set", setting]
        self.begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(self.log, "wb"))

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def address(self):
        while True:
            for line in self.text().split("\n"):
                if "listening address=" in line:
                    return line.split("listening address=")[1].split()[0]
            if self.process.poll() is not None:
                raise SystemExit(f"tandemd ended:\n{self.text()}")
            time.sleep(0.001)

    def run(self, wait_stored):
        """(seconds to ready, to the first token, from a kill of the worker to the next first token, text)"""
        url = "http://" + self.address()
        while True:
            try:
                urllib.request.urlopen(url + "/ready", timeout=10).read()
                break
            except urllib.error.HTTPError as e:
                e.read()
            if self.process.poll() is not None:
                raise SystemExit(f"tandemd ended:\n{self.text()}")
            time.sleep(0.002)
        ready = time.monotonic() - self.begin
        body = json.dumps({"prompt": [1], "max_tokens": 1, "temperature": 0}).encode()
        request = urllib.request.Request(url + "/v1/completions", data=body, headers={"Content-Type": "application/json"})
        text = json.loads(urllib.request.urlopen(request, timeout=600).read())["choices"][0]["text"]
        first_token = time.monotonic() - self.begin
        while wait_stored and "repacked weights stored" not in self.text():
            time.sleep(0.05)
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True).stdout
        for pid in children.split():
            os.kill(int(pid), signal.SIGKILL)
        begin = time.monotonic()
        again = json.loads(urllib.request.urlopen(request, timeout=600).read())["choices"][0]["text"]
        restart = time.monotonic() - begin
        if again != text:
            raise SystemExit(f"after a restart {again!r}, before {text!r}")
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        return ready, first_token, restart, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default=",".join(KINDS), help="without `first`, one start before all fills the cache, unmeasured")
    parser.add_argument("--state", help="a folder on the disk to measure; default: a temporary one")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--json")
    args = parser.parse_args()
    state = tempfile.mkdtemp(prefix="tandem_startup_", dir=args.state)
    kinds = [kind for kind in KINDS if kind in args.kinds.split(",")]
    times, reads, texts = {kind: [] for kind in kinds}, [], set()
    try:
        if "first" not in kinds:
            Start(args, state).run(wait_stored=True)
        for _ in range(args.rounds):
            for kind in kinds:
                if kind == "first":
                    shutil.rmtree(os.path.join(state, "cache"), ignore_errors=True)
                if kind == "disk":
                    reads.append(sum(plain_read_s(path) for path in weights_files(state)))
                    for path in weights_files(state) + [args.model]:
                        drop(path)
                *seconds, text = Start(args, state).run(wait_stored=kind == "first")
                times[kind].append(seconds)
                texts.add(text)
        if len(texts) != 1:
            raise SystemExit(f"the starts do not give one text: {texts}")
        n_bytes = sum(os.path.getsize(p) for p in weights_files(state))
        result = {"model": os.path.basename(args.model), "weights_bytes": n_bytes, "rounds": args.rounds,
                  "plain_read_s": statistics.median(reads) if reads else None}
        print(f"{result['model']}: {n_bytes / 1e6:.0f} MB of packed weights")
        if reads:
            print(f"plain read from disk {result['plain_read_s']:.3f} s ({n_bytes / result['plain_read_s'] / 1e9:.2f} GB/s)")
        for kind in kinds:
            ready, first, restart = (statistics.median(t[i] for t in times[kind]) for i in range(3))
            result[kind] = {"ready_s": ready, "first_token_s": first, "restart_s": restart}
            print(f"{kind:6s} ready {ready:.3f} s, first token {first:.3f} s; first token after a kill {restart:.3f} s")
        if args.json:
            with open(args.json, "w", encoding="utf-8") as f:
                json.dump(result, f, indent=1)
    finally:
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    main()
