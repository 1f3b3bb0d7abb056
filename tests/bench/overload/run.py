#!/usr/bin/env python3
"""What the box does at 1.67 times the rate it sustains, with the ladder of degradation and without it; each figure with its goal.

    run.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--high 1000] [--seconds 0] [--quantize-to q8_0]
    run.py --model FILE --fixed 0.248,0.0221,6.3 --only on|off --json FIGURES    one case at a time, of one unloaded run's figures
    run.py --report FIGURES

The model is requantized to Q8_0 first (the full set). Then, on one server after the other, with the settings of --set: the defaults decode 32
sequences together, which alone may make a gap of more than 3 x the unloaded one:
  unloaded    requests one after another: targets are 5 x the p50 of TTFT and 3 x the p50 of a request's mean gap between tokens;
  throughput  as many clients as the batch holds, each asking again at once: requests a second;
  sustained   the highest rate of Poisson arrivals of the mix below at which the ladder being off leaves 95 % of all requests on target: halving
              the interval below the throughput, --probe seconds each. At the throughput itself queues grow without bound, so no target holds;
  ladder on   Poisson arrivals at 1.67 x that rate until --high requests of high priority have come (or --seconds are over; 0: no limit),
              high 10 %, normal 45 %, low 45 %; every fourth asks for log-probabilities, every tenth low one for 200 tokens;
  ladder off  the same arrivals, degrade.enabled = false.
A request is on target when its TTFT and its mean gap both are. One that was shed or refused is not answered. The full run (1,000 of high
priority are about 10,000 requests a case) takes about 40 minutes at 10 requests a second. Not part of tests/run_all.
"""
import argparse
import asyncio
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
sys.path.insert(0, os.path.join(HERE, "../peers"))

import runners  # noqa: E402

OVERLOAD, TTFT_FACTOR, GAP_FACTOR = 1.67, 5, 3
SUSTAINED_SHARE, N_PROBES = 0.95, 5
WORDS = "river stone market winter engine garden letter signal harbour mountain paper window".split()


@dataclasses.dataclass
class Ask:
    at: float
    priority: str
    n_new: int
    logprobs: bool
    prompt: str


@dataclasses.dataclass
class Reply:
    ask: Ask
    status: int = 0
    ttft: float = 0.0
    gap: float = 0.0
    n_tokens: int = 0
    is_whole: bool = False       # came to its [DONE], or was refused before its first byte
    degraded: tuple = ()
    reason: str = ""
    has_logprobs: bool = False


def make_asks(rate, n_high, seconds, seed):
    rng, at, asks, high = random.Random(seed), 0.0, [], 0
    while high < n_high and (not seconds or at < seconds):
        at += rng.expovariate(rate)
        priority = rng.choices(["high", "normal", "low"], [10, 45, 45])[0]
        high += priority == "high"
        n_new = 200 if priority == "low" and rng.random() < 0.1 else rng.randint(16, 64)
        asks.append(Ask(at, priority, n_new, rng.random() < 0.25, " ".join(rng.choices(WORDS, k=rng.randint(20, 120)))))
    return asks


async def send(url, ask):
    host, port = url.removeprefix("http://").split(":")
    fields = {"prompt": ask.prompt, "max_tokens": ask.n_new, "temperature": 0, "ignore_eos": True, "stream": True, "priority": ask.priority,
              **({"logprobs": 1} if ask.logprobs else {})}
    body = json.dumps(fields).encode()
    reply, sent, first, last = Reply(ask), time.monotonic(), 0.0, 0.0
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % (host.encode(), len(body)) + body)
        reply.status = int((await reader.readline()).split()[1])
        reply.is_whole = reply.status != 200
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                event, last = json.loads(line[6:]), time.monotonic()
                first = first or last
                for choice in event.get("choices", []):
                    reply.n_tokens += choice.get("text", "") != ""
                    reply.has_logprobs |= bool(choice.get("logprobs"))
                if tandem := event.get("tandem"):
                    reply.degraded, reply.reason = tuple(tandem.get("degraded", ())), tandem.get("reason", "")
            reply.is_whole |= line.startswith(b"data: [DONE]")
    except (ConnectionError, asyncio.IncompleteReadError):
        reply.is_whole = False
    finally:
        writer.close()
    reply.ttft = first - sent
    reply.gap = (last - first) / max(1, ask.n_new - 1) if reply.reason != "degraded" else (last - first) / max(1, reply.n_tokens)
    return reply


async def one_after_another(url, n):
    return [await send(url, a) for a in make_asks(1, 10**6, n, 1)[:n]]


async def saturate(url, n_clients, seconds):
    asks, ends = iter(make_asks(1000, 10**6, seconds * 20, 2)), []
    stop = time.monotonic() + seconds

    async def client():
        while time.monotonic() < stop:
            await send(url, dataclasses.replace(next(asks), priority="normal"))
            ends.append(time.monotonic())

    await asyncio.gather(*(client() for _ in range(n_clients)))
    begin = stop - seconds * 2 / 3  # lanes are mixed by then
    return sum(begin <= e <= stop for e in ends) / (seconds * 2 / 3)


async def open_loop(url, asks):
    started, tasks = time.monotonic(), []
    for ask in asks:
        await asyncio.sleep(max(0.0, started + ask.at - time.monotonic()))
        tasks.append(asyncio.ensure_future(send(url, ask)))
    ended = time.monotonic()
    recovered = asyncio.ensure_future(wait_for_full_quality(url, ended))
    return await asyncio.gather(*tasks), await recovered


def metrics(url):
    with urllib.request.urlopen(url + "/metrics") as r:
        return {k: float(v) for k, _, v in (line.rpartition(" ") for line in r.read().decode().split("\n") if line and line[0] != "#")}


async def wait_for_full_quality(url, since):
    """Seconds until no rung is active any more and the load is below what enters one."""
    while True:
        m = await asyncio.to_thread(metrics, url)
        if not any(v for k, v in m.items() if k.startswith("llm_degradation_active")) and not any(
                v for k, v in m.items() if k.startswith("llm_requests_waiting")):
            return time.monotonic() - since
        await asyncio.sleep(0.25)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def on_target(reply, targets):
    return reply["status"] == 200 and reply["ttft"] <= targets[0] and reply["gap"] <= targets[1]


def share(replies, targets, priority):
    of = [r for r in replies if r["ask"]["priority"] == priority]
    return sum(on_target(r, targets) for r in of) / len(of) if of else float("nan"), len(of)


def marks(replies):
    """(touched replies that do not say so, untouched ones that claim it), of the rungs a client can see at work."""
    silent = false = 0
    for r in (r for r in replies if r["status"] == 200):
        for rung, is_touched in (("logprobs", r["ask"]["logprobs"] and not r["has_logprobs"]), ("tokens", r["reason"] == "degraded")):
            silent += is_touched and rung not in r["degraded"]
            false += not is_touched and rung in r["degraded"]
    return silent, false


def load_case(tandem, model, threads, asks, settings):
    with tandem.serve(model, threads, settings) as server:
        pid = server.process.pid
        before_cpu, before = cpu_seconds(pid), time.monotonic()
        replies, recovery = asyncio.run(open_loop(server.address, asks))
        used, wall = cpu_seconds(pid) - before_cpu, time.monotonic() - before
        m = metrics(server.address)
    counted = {k: sum(v for n, v in m.items() if n.startswith("llm_requests_degraded_total") and f'rung="{k}"' in n)
               for k in ("logprobs", "weights-4bit", "batch", "tokens", "shed")}
    said = {k: sum(k in r.degraded for r in replies if r.status == 200) for k in ("logprobs", "weights-4bit", "batch", "tokens")}
    return {"replies": [dataclasses.asdict(r) for r in replies], "recovery": recovery, "supervisor_share": used / wall, "counted": counted, "said": said,
            "tokens": m["llm_generation_tokens_total"]}


def rows(on, off, targets):
    out = []
    for name, goal in (("high", 0.999), ("normal", 0.95), ("low", None)):
        (a, n), (b, _) = share(on["replies"], targets, name), share(off["replies"], targets, name)
        verdict = "" if goal is None else "reached" if (a > goal if name == "high" else a >= goal) else "missed"
        out.append((f"{name} priority answered within target, of {n}", f"{a:.1%}; ladder off {b:.1%}", "" if goal is None else
                    f"{'> 99.9 %' if name == 'high' else '>= 95 %'}", verdict))
    for name, case in (("on", on), ("off", off)):
        refused = {p: sum(r["status"] != 200 for r in case["replies"] if r["ask"]["priority"] == p) for p in ("high", "normal", "low")}
        out.append((f"refused, ladder {name} (high, normal, low)", ", ".join(str(v) for v in refused.values()), "", ""))
    lost = sum(not r["is_whole"] for case in (on, off) for r in case["replies"])
    out.append(("accepted requests lost, both runs", str(lost), "0", "reached" if lost == 0 else "missed"))
    silent, false = marks(on["replies"])
    agrees = all(on["said"][k] == on["counted"][k] for k in on["said"])
    out.append(("touched replies that do not say so; untouched that claim it", f"{silent}; {false}", "0; 0",
                "reached" if silent == false == 0 and agrees else "missed"))
    out.append(("replies that say logprobs, weights-4bit, batch, tokens; the server counted",
                f"{list(on['said'].values())}; {[int(on['counted'][k]) for k in on['said']]}", "equal", "reached" if agrees else "missed"))
    out.append(("from overload's end to full quality, s", f"{on['recovery']:.1f}", "< 30", "reached" if on["recovery"] < 30 else "missed"))
    out.append(("tandemd's processor time over wall time (HTTP, SSE, metrics, log, all)", f"{on['supervisor_share']:.2%} of a core", "", ""))
    return out


def settings_of(a, case):
    return [*(a.set_off if case == "off" and a.set_off else a.set), f"degrade.enabled={'true' if case == 'on' else 'false'}"]


def measure_unloaded(tandem, model, a):
    """[TTFT target, gap target, sustained requests a second]"""
    with tandem.serve(model, a.threads, a.set) as server:
        alone = asyncio.run(one_after_another(server.address, 204))[4:]  # of 20 the median moves by a tenth
        with urllib.request.urlopen(server.address + "/status.json") as r:
            n_lanes = json.load(r)["kv"]["batch_limit"] or 32
        throughput = asyncio.run(saturate(server.address, n_lanes, a.saturate))
    targets = [TTFT_FACTOR * statistics.median(r.ttft for r in alone), GAP_FACTOR * statistics.median(r.gap for r in alone)]
    print(f"targets TTFT {targets[0]:.3f} s, gap {1e3 * targets[1]:.1f} ms; throughput {throughput:.2f} requests/s", flush=True)
    return [*targets, sustained_rate(tandem, model, a, targets, throughput)]


def sustained_rate(tandem, model, a, targets, throughput):
    held, missed = 0.0, throughput
    for i in range(N_PROBES):
        rate = (held + missed) / 2
        with tandem.serve(model, a.threads, settings_of(a, "off")) as server:
            replies, _ = asyncio.run(open_loop(server.address, make_asks(rate, 10**6, a.probe, 40 + i)))
        good = sum(on_target(dataclasses.asdict(r), targets) for r in replies) / len(replies)
        print(f"ladder off, {rate:.2f} requests/s: {good:.1%} of {len(replies)} on target", flush=True)
        held, missed = (rate, missed) if good >= SUSTAINED_SHARE else (held, rate)
    if held == 0:
        raise RuntimeError(f"not even {missed:.2f} requests/s are on target; other settings, --set, or a longer --probe?")
    return held


def report(figures):
    print("| what | value | goal | |\n|---|---|---|---|")
    for row in rows(figures["on"], figures["off"], figures["fixed"][:2]):
        print("| " + " | ".join(row) + " |")


def measure(a, scratch, figures):
    tandem = runners.Tandem(os.path.join(a.build, "bin"))
    model = a.model
    if a.quantize_to:
        model = os.path.join(scratch, f"model-{a.quantize_to}.gguf")
        subprocess.run([os.path.join(a.build, "bin/tandem"), "quantize", "--model", a.model, "--to", a.quantize_to, "--out", model],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    fixed = [float(v) for v in a.fixed.split(",")] if a.fixed else measure_unloaded(tandem, model, a)
    figures["fixed"] = fixed
    asks = make_asks(OVERLOAD * fixed[2], a.high, a.seconds, 3)
    print(f"{os.path.basename(model)}: targets TTFT {fixed[0]:.3f} s, gap {1e3 * fixed[1]:.1f} ms; sustained {fixed[2]:.2f} requests/s; "
          f"{len(asks)} arrivals at {OVERLOAD * fixed[2]:.2f} a second, {asks[-1].at:.0f} s", flush=True)
    for name in ("on", "off"):
        if a.only in ("", name):
            figures[name] = load_case(tandem, model, a.threads, asks, settings_of(a, name))
            within = ", ".join(f"{p} {share(figures[name]['replies'], fixed[:2], p)[0]:.1%}" for p in ("high", "normal", "low"))
            if a.json:
                with open(a.json, "w") as f:
                    json.dump(figures, f)
            print(f"ladder {name}: within target {within}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="GGUF file")
    p.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    p.add_argument("--high", type=int, default=1000, help="requests of high priority in each overload")
    p.add_argument("--seconds", type=float, default=0, help="an overload ends after so long at the latest; 0: no limit")
    p.add_argument("--saturate", type=float, default=40, help="seconds of the run that measures the throughput")
    p.add_argument("--probe", type=float, default=45, help="seconds of arrivals of each of the runs that look for the sustained rate")
    p.add_argument("--quantize-to", default="q8_0", help="of the model first; empty: as it is")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--set", action="append", default=[], help="section.key=value for all servers")
    p.add_argument("--set-off", action="append", default=[], help="instead of --set where the ladder is off, if other settings are better there")
    p.add_argument("--fixed", default="", help="TTFT target, gap target, requests/s of an earlier run instead of measuring them")
    p.add_argument("--only", default="", choices=["", "on", "off"])
    p.add_argument("--json", help="keep figures here; those of earlier calls stay")
    p.add_argument("--report", help="print the table of such a file")
    a = p.parse_args()
    path = a.report or a.json
    figures = json.load(open(path)) if path and os.path.exists(path) else {}
    if a.report:
        return report(figures)
    if not a.model:
        p.error("--model is needed")
    with tempfile.TemporaryDirectory() as scratch:
        measure(a, scratch, figures)
    if "on" in figures and "off" in figures:
        report(figures)


if __name__ == "__main__":
    main()
