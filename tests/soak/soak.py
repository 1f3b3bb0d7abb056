#!/usr/bin/env python3
"""soak.py --minutes N [--kills-a-minute K] [--clients C] [--seed S] [--json FILE]: an appliance under mixed load (chat,
completions, streams, priorities, cancels, slow readers, scrapes, reloads) while its worker is killed at random. Every reply
is compared with the one an unloaded run gave; at the end the process must hold no more memory, files, threads or pages than
after the first minutes. Appends one JSON line a minute and one at the end, so that a long run can be done in pieces; Ctrl-C
ends one early and judges what was done.

Exit 1: a reply was lost, mixed up or different, the process grew, or a restart was not counted."""
import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../process"))
import psutil  # noqa: E402
from conftest import Appliance, sse_events  # noqa: E402

TOPICS = ["the sea", "a lost key", "winter", "bread", "a machine", "the moon", "a letter", "rain", "an old road", "glass", "a clock", "smoke"]


def bodies():
    """Requests that give the same text each time: (path, body)."""
    out = []
    for i, topic in enumerate(TOPICS):
        out.append(("/v1/completions", {"prompt": f"Number {i}: a story about {topic}. Once", "max_tokens": 24 + 7 * (i % 5), "temperature": 0.8, "seed": i}))
        out.append(("/v1/chat/completions", {"messages": [{"role": "user", "content": f"({i}) Say something about {topic}."}], "max_tokens": 20 + 5 * (i % 4),
                                             "temperature": 0, "stop": ["###"]}))
    out.append(("/v1/completions", {"prompt": "word " * 300 + "end", "max_tokens": 8, "temperature": 0}))
    return out


def text_of(path, reply):
    choice = reply["choices"][0]
    return choice["text"] if path == "/v1/completions" else choice["message"]["content"]


class Soak:
    def __init__(self, appliance, seed):
        self.a, self.seed = appliance, seed
        self.lock, self.counts, self.faults = threading.Lock(), {}, []
        self.stopping = threading.Event()
        self.bodies = bodies()
        self.expected = [text_of(p, json.loads(appliance.post(p, b)[1])) for p, b in self.bodies]

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + n

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def plain(self, draw, i):
        path, body = self.bodies[i]
        status, text, headers = self.a.post(path, {**body, "priority": draw.choice(["high", "normal", "low"])}, timeout=180)
        if status == 429:
            self.count("refused")
            return time.sleep(min(2, int(headers.get("Retry-After", "1"))))
        if status != 200:
            return self.fault(f"{path} {i}: {status} {text[:200]}")
        self.count("replies")
        if text_of(path, json.loads(text)) != self.expected[i]:
            self.fault(f"{path} {i}: another text: {text_of(path, json.loads(text))!r}, expected {self.expected[i]!r}")

    def stream(self, draw, i):
        path, body = self.bodies[i]
        how = draw.choice(["whole", "whole", "slow", "cancel"])
        request = urllib.request.Request(self.a.url + path, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"})
        try:
            reply = urllib.request.urlopen(request, timeout=180)
        except urllib.error.HTTPError as e:
            return self.count("refused") if e.code == 429 else self.fault(f"stream {i}: {e.code}")
        with reply:
            if how == "cancel":
                reply.readline()
                return self.count("cancels")
            lines = []
            for line in reply:
                lines.append(line.decode())
                if how == "slow":
                    time.sleep(0.02)
        events = list(sse_events(lines))
        if not events or events[-1] != "[DONE]":
            return self.fault(f"stream {i} ({how}): no [DONE]: {lines[-3:]}")
        choices = [c for e in events[:-1] for c in e.get("choices", [])]
        text = "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices)
        self.count("replies")
        if text != self.expected[i]:
            self.fault(f"stream {i} ({how}): another text: {text!r}, expected {self.expected[i]!r}")

    def client(self, number):
        draw = random.Random(f"{self.seed} {number}")
        while not self.stopping.is_set():
            i = draw.randrange(len(self.bodies))
            try:
                (self.stream if draw.random() < 0.6 else self.plain)(draw, i)
            except Exception as e:
                self.fault(f"client {number}, request {i}: {type(e).__name__}: {e}")

    def scraper(self):
        while not self.stopping.wait(1):
            try:
                self.a.metrics()
                status = self.a.get("/ready")[0]
                self.count("scrapes")
                if status not in (200, 503):
                    self.fault(f"/ready: {status}")
            except Exception as e:
                self.fault(f"scrape: {e}")

    def trouble(self, kills_a_minute):
        draw = random.Random(self.seed)
        while not self.stopping.wait(draw.expovariate(kills_a_minute / 60) if kills_a_minute else 3600):
            if draw.random() < 0.2:
                self.a.process.send_signal(signal.SIGHUP)
                self.count("reloads")
                continue
            for _ in range(100):  # a worker that is being replaced already cannot be killed again
                if self.a.get("/ready")[0] == 200:
                    break
                time.sleep(0.05)
            self.count("kills", self.a.kill_worker())

    def sizes(self):
        p = psutil.Process(self.a.process.pid)
        return {"rss_mb": round(p.memory_info().rss / 2**20, 1), "fds": p.num_fds(), "threads": p.num_threads()}


def run(minutes, kills_a_minute, clients, seed, json_file, say=print):
    state = tempfile.mkdtemp(prefix="tandem-soak.")
    appliance = Appliance(state, settings=["log.flush_ms=100", "limits.timeout_ms=170000"])
    begin = time.time()

    def line(**facts):
        text = json.dumps({"time": round(time.time()), "seed": seed, "minutes": round((time.time() - begin) / 60, 2), **facts})
        say(text)
        if json_file:
            with open(json_file, "a") as f:
                f.write(text + "\n")

    soak = Soak(appliance, seed)
    threads = [threading.Thread(target=soak.client, args=(n,)) for n in range(clients)]
    threads += [threading.Thread(target=soak.scraper), threading.Thread(target=soak.trouble, args=(kills_a_minute,))]
    for t in threads:
        t.start()
    settled, end = None, begin + 60 * minutes
    try:
        while time.time() < end:
            time.sleep(max(0, min(60, end - time.time())))
            sizes = soak.sizes()
            if settled is None and time.time() - begin >= min(180, 60 * minutes / 3):
                settled = sizes
            line(**soak.counts, **sizes, faults=len(soak.faults))
    except KeyboardInterrupt:
        pass  # what was done so far is judged
    finally:
        soak.stopping.set()
        for t in threads:
            t.join(200)
    metrics = appliance.wait_idle(60)
    restarts = sum(v for k, v in metrics.items() if k.startswith("llm_worker_restarts_total"))
    time.sleep(2)
    after = soak.sizes()
    if settled:
        if after["rss_mb"] > settled["rss_mb"] * 1.25 + 16:
            soak.fault(f"memory grew: {settled} to {after}")
        if after["fds"] > settled["fds"] + 8 or after["threads"] > settled["threads"] + 8:
            soak.fault(f"descriptors or threads grew: {settled} to {after}")
    if restarts != soak.counts.get("kills", 0):
        soak.fault(f"{soak.counts.get('kills', 0)} kills, {restarts:.0f} restarts counted")
    if appliance.stop() != 0:
        soak.fault("tandemd did not end well")
    line(done=True, **soak.counts, **after, restarts=restarts, faults=len(soak.faults), first_faults=soak.faults[:5])
    return soak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--kills-a-minute", type=float, default=4)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json")
    o = parser.parse_args()
    soak = run(o.minutes, o.kills_a_minute, o.clients, o.seed, o.json)
    sys.exit(bool(soak.faults) or soak.counts.get("replies", 0) == 0)


if __name__ == "__main__":
    main()
