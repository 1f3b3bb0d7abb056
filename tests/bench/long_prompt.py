#!/usr/bin/env python3
"""A long prompt beside running streams: worst gap of the streams without and with it, and its time to first token beside them
and alone. `long_prompt.py --model FILE [--bin DIR] [--streams 8] [--prompt 6000] [--set section.key=value ...]`; prints JSON."""
import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time


class Server:
    def __init__(self, binary, model, settings):
        self.state = tempfile.mkdtemp(prefix="tandem_bench_")
        command = [os.path.join(binary, "tandem"), "serve", "--model", model, "--port", "0", "--state", self.state]
        for s in settings:
            command += ["--set", s]
        self.log = os.path.join(self.state, "log")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(self.log, "wb"))
        end = time.time() + 60
        while time.time() < end:
            if m := re.search(r"listening address=(\S+):(\d+)", open(self.log, errors="replace").read()):
                self.host, self.port = m.group(1), int(m.group(2))
                if self.get("/ready") == 200:
                    return
            time.sleep(0.05)
        sys.exit("the server is not ready: " + open(self.log, errors="replace").read()[-2000:])

    def get(self, path):
        c = http.client.HTTPConnection(self.host, self.port, timeout=10)
        c.request("GET", path)
        return c.getresponse().status

    def stream(self, prompt, n, times):
        """Appends the time of each token of the answer."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=300)
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        if r.status != 200:
            sys.exit(f"HTTP {r.status}: {r.read().decode()}")
        while line := r.readline():
            if line.startswith(b"data: {") and b'"text"' in line:
                times.append(time.perf_counter())
        c.close()

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def ids(seed, n):
    return [(seed * 7919 + i * 104729) % 40000 + 100 for i in range(n)]


def worst_gap(all_times, begin, end):
    return max(b - a for times in all_times for a, b in zip(times, times[1:]) if b > begin and a < end)


def one_round(a, round_number):
    server = Server(a.bin, a.model, a.set)
    alone = []
    started = time.perf_counter()
    server.stream(ids(1000 + round_number, a.prompt), 1, alone)
    ttft_alone = alone[0] - started
    all_times = [[] for _ in range(a.streams)]
    threads = [threading.Thread(target=server.stream, args=(ids(i, 40), a.tokens, all_times[i])) for i in range(a.streams)]
    for t in threads:
        t.start()
    while min(len(t) for t in all_times) < 20:
        time.sleep(0.01)
    calm_begin = time.perf_counter()
    time.sleep(a.calm)
    calm_end = time.perf_counter()
    long = []
    server.stream(ids(2000 + round_number, a.prompt), 1, long)
    busy_end = time.perf_counter()
    n = sum(1 for times in all_times for t in times if calm_end < t < busy_end)
    if any(len(t) >= a.tokens for t in all_times):
        sys.exit("the streams ended before the long prompt: raise --tokens")
    calm, busy = worst_gap(all_times, calm_begin, calm_end), worst_gap(all_times, calm_end, busy_end)
    server.stop()
    return {"gap_calm_ms": 1e3 * calm, "gap_busy_ms": 1e3 * busy, "gap_ratio": busy / calm, "ttft_alone_s": ttft_alone,
            "ttft_beside_s": long[0] - calm_end, "ttft_ratio": (long[0] - calm_end) / ttft_alone,
            "stream_tokens_per_s": n / (busy_end - calm_end)}


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", required=True)
    p.add_argument("--bin", default=os.path.join(os.path.dirname(__file__), "../../build/release/bin"))
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--prompt", type=int, default=6000)
    p.add_argument("--tokens", type=int, default=1500)
    p.add_argument("--calm", type=float, default=4, help="seconds of streams alone")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--set", action="append", default=[])
    a = p.parse_args()
    rounds = [one_round(a, i) for i in range(a.rounds)]
    print(json.dumps({k: round(statistics.median(r[k] for r in rounds), 3) for k in rounds[0]}))


if __name__ == "__main__":
    main()
