#!/usr/bin/env python3
"""Scheduling and paged KV under load: each figure with its goal, from real server processes over HTTP on this machine.

    run.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--case NAME...] [--json FIGURES] [--seconds 60]
    run.py --report --json FIGURES

Cases run one after another; figures of earlier calls in the JSON file are kept (a list a figure, medians shown). What is
compared is the same program with another setting: static batching starts a batch when it is full or 50 ms after the first
request, nobody joins until all have ended; `static` drops lanes that have ended, `static-padded` computes them on. All ways
run without prefix cache and with whole prompt chunks, 16 lanes. Prompts beyond the trained context use a copy of the model
with a larger llama.context_length. llama.cpp's server is built by ../peers. Not part of tests/run_all.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
sys.path.insert(0, os.path.join(HERE, "../peers"))

import cases  # noqa: E402
import runners  # noqa: E402
from setup_peers import say  # noqa: E402

# (what, figure over figure, their row, bound, is the bound the least allowed?)
RATIOS = [
    ("continuous against static with ended lanes computed", "continuous", "static-padded", 0, 8, True),
    ("dynamic against static with ended lanes computed", "dynamic", "static-padded", 0, 3, True),
    ("P99 of short requests, continuous against dynamic", "p99-continuous", "p99-dynamic", 0, 0.25, False),
    ("P99 of whole answers past 80 % KV usage, batch limit fixed against adapting", "kv-fixed", "kv-adapting", 0, None, True),
    ("P99 of a request's worst gap past 80 % KV usage, fixed against adapting", "kv-fixed", "kv-adapting", 2, 2, True),
]


def value_of(figures, case, row=0):
    rows = figures.get(case)
    return statistics.median(rows[row]["values"]) if rows else None


def report(figures):
    lines = ["| what | median | goal | |", "|---|---|---|---|"]
    for name in cases.CASES:
        for row in figures.get(name, []):
            verdict = "" if row["reached"][-1] is None else ("reached" if all(row["reached"]) else "missed")
            lines.append(f"| {row['what']} | {statistics.median(row['values']):.4g} {row['unit']} | {row['goal']} | {verdict} |")
    for what, a, b, row, bound, at_least in RATIOS:
        x, y = value_of(figures, a, row), value_of(figures, b, row)
        if x and y:
            goal = "" if bound is None else f"{'>=' if at_least else '<='} {bound}"
            verdict = "" if bound is None else ("reached" if (x / y >= bound) == at_least or x / y == bound else "missed")
            lines.append(f"| {what} | {x / y:.2f} | {goal} | {verdict} |")
    x, y, simulated = (value_of(figures, name) for name in ("continuous", "static", "predicted"))
    if x and y and simulated:
        verdict = "reached" if x / y >= 0.9 * simulated else "missed"
        lines.append(f"| continuous against static with ended lanes dropped | {x / y:.2f} | >= 90 % of the simulator's {simulated:.2f} | {verdict} |")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", type=os.path.abspath)
    p.add_argument("--case", nargs="+", choices=list(cases.CASES), default=list(cases.CASES), metavar="NAME",
                   help=", ".join(cases.CASES))
    p.add_argument("--seconds", type=float, default=60, help="length of the traces with Poisson arrivals")
    p.add_argument("--target-gap-ms", type=int, help="batch.target_inter_token_latency_ms for the cases with long prompts")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--work", type=os.path.abspath, default=os.path.join(ROOT, "build/peers"), help="where the peers are built")
    p.add_argument("--build", type=os.path.abspath, default=os.path.join(ROOT, "build/release"), help="build folder of Tandem")
    p.add_argument("--json", help="file for the figures; added to if there")
    p.add_argument("--report", action="store_true", help="print the table only")
    args = p.parse_args()
    figures = {}
    if args.json and os.path.exists(args.json):
        with open(args.json) as f:
            figures = json.load(f)
    if not args.report:
        tandem = runners.Tandem(os.path.join(args.build, "bin"))
        with tempfile.TemporaryDirectory() as scratch:
            bench = cases.Bench(args, tandem, scratch)
            for name in args.case:
                rows = cases.CASES[name](bench)
                for i, (what, value, unit, goal, reached) in enumerate(rows):
                    say(f"{what}: {value:.4g} {unit} {goal} {'' if reached is None else 'reached' if reached else 'MISSED'}")
                    kept = figures.setdefault(name, [])
                    if len(kept) <= i:
                        kept.append({"values": [], "reached": []})
                    kept[i].update({"what": what, "unit": unit, "goal": goal})
                    kept[i]["values"].append(value)
                    kept[i]["reached"].append(reached)
                if args.json:
                    with open(args.json, "w") as f:
                        json.dump(figures, f, indent=1)
    print(report(figures))


if __name__ == "__main__":
    main()
