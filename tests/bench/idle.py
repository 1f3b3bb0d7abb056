#!/usr/bin/env python3
"""What an appliance costs that has nothing to do, what many connections cost, and how long a worker's death is felt.

    tests/bench/idle.py --model FILE [--seconds 60] [--kills 10] [--set section.key=value]

Processor time of all its processes over so many idle seconds, as a share of one core; resident memory (RSS, and PSS: shared pages by share) of
tandemd idle, with server.max_connections connections that only stay open, and with as many clients that stream or wait; the pause of four running
streams when their worker is killed, from the signal to the next piece of the slowest, and that their text is the undisturbed one. What other
programs took of the machine meanwhile stands beside the figures. TANDEM_BIN_DIR as for the process tests.
"""
import argparse
import http.client
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time

import psutil

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../process"))
from conftest import Appliance  # noqa: E402

PROMPTS = [f"Once upon a time, in a town of {n} houses, there lived" for n in ("three", "ten", "ninety", "a thousand")]


def tandemd(a):
    """`tandem serve` becomes tandemd, or starts it."""
    process = psutil.Process(a.process.pid)
    return next(p for p in [process, *process.children(recursive=True)] if p.name() == "tandemd")


def stream(a, prompt, n_tokens, on_piece=lambda: None):
    """(status, text)"""
    connection = http.client.HTTPConnection(a.address, timeout=120)
    body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply, text = connection.getresponse(), ""
    for line in reply:
        if line.startswith(b"data: {") and (choices := json.loads(line[6:]).get("choices")):
            text += choices[0]["text"]
            on_piece()
    return reply.status, text


def processor_seconds(processes):
    total = 0
    for process in processes:
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with open(f"/proc/{process.pid}/task/{thread}/schedstat", encoding="ascii") as f:
                total += int(f.read().split()[0])
    return total / 1e9


def busy_seconds():
    t = psutil.cpu_times()
    return t.user + t.nice + t.system + t.irq + t.softirq + t.steal


def memory(process):
    info = process.memory_full_info()
    return f"RSS {info.rss / 2**20:.1f} MiB, PSS {info.pss / 2**20:.1f} MiB"


def idle(a, seconds):
    time.sleep(5)  # checks behind the service are done
    parts = {"tandemd": [tandemd(a)], "worker": [psutil.Process(pid) for pid in a.worker_pids()]}
    before, busy = {name: processor_seconds(p) for name, p in parts.items()}, busy_seconds()
    time.sleep(seconds)
    own = {name: processor_seconds(p) - before[name] for name, p in parts.items()}
    others = (busy_seconds() - busy - sum(own.values())) / seconds / os.cpu_count()
    share = {name: f"{100 * used / seconds:.3f} %" for name, used in own.items()}
    print(f"idle for {seconds} s: {100 * sum(own.values()) / seconds:.3f} % of one core ({', '.join(f'{n} {s}' for n, s in share.items())}); "
          f"others took {100 * others:.0f} % of the machine")


def connections(a, n):
    print(f"tandemd idle: {memory(tandemd(a))}")
    open_ones = []
    for _ in range(n):
        connection = socket.create_connection(a.address.split(":"))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        open_ones.append(connection)
    print(f"tandemd with {n} open connections: {memory(tandemd(a))}")
    for connection in open_ones:
        connection.close()
    time.sleep(1)
    statuses, highest, done = [], [0, 0], threading.Event()

    def watch():
        while not done.wait(0.1):
            info = tandemd(a).memory_full_info()
            highest[:] = max(highest[0], info.rss), max(highest[1], info.pss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    clients = [threading.Thread(target=lambda i=i: statuses.append(stream(a, f"Story {i}.", 8)[0])) for i in range(n)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    done.set()
    watcher.join()
    count = {status: statuses.count(status) for status in sorted(set(statuses))}
    print(f"tandemd with {n} clients at once (answers: {count}): RSS {highest[0] / 2**20:.1f} MiB, PSS {highest[1] / 2**20:.1f} MiB at most; "
          f"afterwards {memory(tandemd(a))}")


def kills(a, n):
    n_tokens = 200
    wanted = [stream(a, prompt, n_tokens)[1] for prompt in PROMPTS]
    pauses = []
    for _ in range(n):
        a.wait_ready()
        pieces, texts = [[] for _ in PROMPTS], [None] * len(PROMPTS)

        def run(i):
            texts[i] = stream(a, PROMPTS[i], n_tokens, lambda: pieces[i].append(time.monotonic()))[1]

        clients = [threading.Thread(target=run, args=(i,)) for i in range(len(PROMPTS))]
        for client in clients:
            client.start()
        while not all(len(p) > 20 for p in pieces):
            assert a.process.poll() is None, a.log()
            time.sleep(0.02)
        killed = time.monotonic()
        a.kill_worker()
        for client in clients:
            client.join()
        assert texts == wanted, "a text is another one than without the kill"
        # Pieces that were on their way come at once; the pause is the longest gap that begins near the kill.
        gaps = [max((b - max(a, killed), a) for a, b in zip(p, p[1:]) if b > killed) for p in pieces]
        pauses.append(max(gap for gap, _ in gaps))
    print(f"worker killed in {len(PROMPTS)} streams, {n} times: the slowest of them goes on after {statistics.median(pauses):.2f} s (median), "
          f"{max(pauses):.2f} s (worst); all texts as without")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        begin = time.monotonic()
        a = Appliance(state, model=args.model, settings=args.set)
        try:
            status, _ = stream(a, PROMPTS[0], 1)
            assert status == 200
            print(f"first start to first answer: {time.monotonic() - begin:.2f} s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            idle(a, args.seconds)
            kills(a, args.kills)
            most = [s.partition("=")[2] for s in args.set if s.startswith("server.max_connections=")]
            connections(a, int(most[-1]) if most else 256)
        finally:
            a.stop()


if __name__ == "__main__":
    main()
