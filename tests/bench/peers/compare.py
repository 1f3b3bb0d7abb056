#!/usr/bin/env python3
"""Tandem beside llama.cpp, ik_llama.cpp and OpenVINO GenAI on this machine: same model file, threads and token ids, programs taking
turns round by round; medians and ratios to the best peer, and the machine's own limits measured in the same rounds.

  compare.py --model FILE... [--rounds 3] [--json FIGURES]     measures; figures already in the JSON file are kept and added to
  compare.py --report --json FIGURES [--scaled NAME=1:FILE1,4:FILE4,32]...    prints the tables only
  compare.py --setup                                           fetches and builds the peers, nothing else

--scaled: a large shape timed with 1 and 4 layers (and the whole head); seconds per token are linear in the layers.
A peer that can't read a file is a dash. The peers come from PyPI and are built natively into --work, once.
Not part of tests/run_all. Example:
  cmake --build --preset release && cmake --build --preset release --target machine_bench
  tests/bench/peers/compare.py --model SmolLM2-135M-Instruct.Q4_1.gguf --json figures.json
"""
import argparse
import json
import os
import resource
import statistics
import time

import runners
import setup_peers
from setup_peers import say

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
COLUMNS = [("prefill", "prefill 512"), ("decode", "decode 128"), ("clients16", "16 clients"), ("clients64", "64 clients")]


def programs(args):
    makers = {
        "llama.cpp": lambda: runners.Llama("llama.cpp", args.work, setup_peers.LLAMA_CPP),
        "ik_llama.cpp": lambda: runners.Llama("ik_llama.cpp", args.work, setup_peers.IK_LLAMA_CPP,
                                              ((), ("-rtr", "1"))),
        "openvino": lambda: runners.OpenVino(args.work),
        "tandem": lambda: runners.Tandem(os.path.join(args.build, "bin")),
    }
    return [makers[name]() for name in args.programs.split(",")]


def busy_seconds():
    """Processor seconds this machine has spent, and those of them that went to programs measured here."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, soft, steal = (int(x) for x in f.readline().split()[1:9])
    own = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    return ((user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK"), sum(u.ru_utime + u.ru_stime for u in own))


def settle(args):
    """Waits, 20 s at most, for a second in which nobody else computes."""
    for _ in range(20):
        before, _ = busy_seconds()
        time.sleep(1)
        if (busy_seconds()[0] - before) / os.cpu_count() <= args.foreign:
            return


def undisturbed(args, measure):
    """Figures of `measure`, or {} where other programs (or other guests of the host) took more than --foreign of the processors."""
    settle(args)
    all_before, own_before = busy_seconds()
    started = time.monotonic()
    values = measure()
    all_after, own_after = busy_seconds()
    share = (all_after - all_before - own_after + own_before) / (time.monotonic() - started) / os.cpu_count()
    if share <= args.foreign:
        return values
    say(f"  dropped, others took {100 * share:.1f} % of the processors: {values}")
    return {}


def save(figures, args):
    if args.json:
        with open(args.json, "w") as f:
            json.dump(figures, f, indent=1)


def add_round(figures, args, everyone, model):
    entry = figures["models"].setdefault(os.path.basename(model), {})
    limits = runners.output_of([os.path.join(args.build, "tests/bench/machine_bench"), "", str(args.threads)])
    figures["machine"].append(json.loads(limits.splitlines()[-1]))
    for program in everyone:
        figures["versions"][program.name] = program.version
        into = entry.setdefault(program.name, {})
        values = {}
        for what in args.what.split(","):
            if what == "64" and program.name != "Tandem":
                continue
            try:
                values |= undisturbed(args, lambda what=what: program.measure(model, args.threads, what))
            except RuntimeError as e:
                say(f"  {program.name}, {what}: {e}")
                into["error"] = str(e)[-400:]
        say(f"  {program.name}: " + ", ".join(f"{k} {v:.3g}" if v < 10 else f"{k} {v:.1f}" for k, v in values.items()))
        for key, value in values.items():
            into.setdefault(key, []).append(value)
        save(figures, args)  # after each program: a round of a large model may be cut short


# --- report -----------------------------------------------------------------------------------------------

def medians(entry):
    return {name: {k: statistics.median(v) for k, v in values.items() if k != "error"} for name, values in entry.items()}


def scaled(figures, text):
    """Medians of a shape with all its layers from two files with few: 1 / speed = a + b x layers."""
    name, parts = text.split("=")
    few, many, layers = parts.split(",")
    (l1, f1), (l2, f2) = (p.split(":") for p in (few, many))
    l1, l2, layers = int(l1), int(l2), int(layers)

    def line(a, b):
        return b + (layers - l2) * (b - a) / (l2 - l1)

    out = {}
    a_all, b_all = medians(figures["models"][f1]), medians(figures["models"][f2])
    for program, b in b_all.items():
        a, row = a_all.get(program, {}), {}
        for key, _ in COLUMNS:
            if key in a and key in b:
                row[key] = 1 / line(1 / a[key], 1 / b[key])
        for share, speed in (("int8_share", "prefill"), ("read_share", "decode")):
            if share in a and share in b:  # work per token is linear too
                row[share] = line(a[share] / a[speed], b[share] / b[speed]) * row[speed]
        out[program] = row
    return name, out


def table(name, rows):
    """Markdown: a row a program, the ratio to the best peer, shares of the machine's limits."""
    def cell(row, key):
        return f"{row[key]:.1f}" if key in row else "–"

    lines = [f"| {name} | " + " | ".join(title for _, title in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for program in sorted(rows, key=lambda p: p == "Tandem"):
        lines.append(f"| {program} | " + " | ".join(cell(rows[program], key) for key, _ in COLUMNS) + " |")
    ours = rows.get("Tandem", {})
    ratios = []
    for key, _ in COLUMNS:
        best = max((row[key] for p, row in rows.items() if p != "Tandem" and key in row), default=None)
        ratios.append(f"{ours[key] / best:.2f}" if best and key in ours else "–")
    lines.append("| ratio to the best peer | " + " | ".join(ratios) + " |")
    if "int8_share" in ours and "read_share" in ours:
        lines.append(f"| of the machine's limit | {100 * ours['int8_share']:.0f} % of int8 peak | "
                     f"{100 * ours['read_share']:.0f} % of read bandwidth | | |")
    return "\n".join(lines)


def report(figures, scalings):
    limits = {k: statistics.median(m[k] for m in figures["machine"]) for k in figures["machine"][0]}
    text = [f"{limits['threads']:.0f} threads, tokens/s, medians. The machine in the same rounds: int8 {limits['int8_ops_per_s'] / 1e9:.0f} GOPS, "
            f"BF16 {limits['bf16_ops_per_s'] / 1e9:.0f} GFLOPS, reads {limits['read_bytes_per_s'] / 1e9:.1f} GB/s.",
            "Versions: " + "; ".join(f"{n} ({v})" if n != "Tandem" else v for n, v in figures["versions"].items()) + "."]
    used = {part.split(":")[1] for s in scalings for part in s.split("=")[1].split(",")[:2]}
    for model, entry in figures["models"].items():
        if model not in used:
            rounds = max((len(v) for values in entry.values() for k, v in values.items() if k != "error"), default=0)
            text.append(table(f"{model.removesuffix('.gguf')}, {rounds} rounds", medians(entry)))
    for s in scalings:
        text.append(table(*scaled(figures, s)))
    return "\n\n".join(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", nargs="+", default=[])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--programs", default="llama.cpp,ik_llama.cpp,openvino,tandem")
    p.add_argument("--what", default="speed,16,64", help="speed (prefill and decode), 16 and 64 (clients; 64 for Tandem only)")
    p.add_argument("--work", type=os.path.abspath, default=os.path.join(ROOT, "build/peers"), help="where the peers are fetched and built")
    p.add_argument("--build", type=os.path.abspath, default=os.path.join(ROOT, "build/release"), help="build folder of Tandem")
    p.add_argument("--json", help="file for the figures; added to if there")
    p.add_argument("--foreign", type=float, default=0.1, help="share of the processors others may take before a figure is dropped")
    p.add_argument("--setup", action="store_true")
    p.add_argument("--report", action="store_true")
    p.add_argument("--scaled", action="append", default=[])
    args = p.parse_args()
    figures = {"machine": [], "versions": {}, "models": {}}
    if args.json and os.path.exists(args.json):
        with open(args.json) as f:
            figures = json.load(f)
    if not args.report:
        everyone = programs(args)
        for i in range(0 if args.setup else args.rounds):
            for model in map(os.path.abspath, args.model):
                say(f"round {i + 1} of {args.rounds}: {os.path.basename(model)}")
                add_round(figures, args, everyone, model)
    if figures["machine"]:
        print(report(figures, args.scaled))


if __name__ == "__main__":
    main()
