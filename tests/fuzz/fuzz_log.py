#!/usr/bin/env python3
"""log.jsonl, one line a run of a target, and what the runs add up to. `fuzz_log.py` prints the table of `run --summary`."""
import json
import os
import sys

LOG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "log.jsonl")
TARGETS = ("fuzz_gguf", "fuzz_tokenizer", "fuzz_template", "fuzz_ipc", "fuzz_http_body", "fuzz_settings", "fuzz_reply")
GOAL_EXECUTIONS = 100_000_000
MOST_COUNTED = GOAL_EXECUTIONS * 3 // 10  # of one target: what a fast one runs beyond that counts for nothing
LEAST_EXECUTIONS = 1_000_000
QUIET_SECONDS = 30 * 60
MAX_ARCHIVE_BYTES = 200_000               # of one target's kept inputs: 1 MB for all


def append(run, path=LOG):
    with open(path, "a", encoding="utf-8") as f:
        f.write(json.dumps(run) + "\n")


def read(path=LOG):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def longest_quiet(runs):
    """The longest time without a new edge. Goes on in the next run if that one began with the same edges and found none."""
    longest = quiet = edges = 0
    for run in runs:
        goes_on = run["new_edges"] == 0 and run["edges"] == edges
        quiet = run["quiet_cpu_seconds"] + (quiet if goes_on else 0)
        longest, edges = max(longest, quiet), run["edges"]
    return longest


def summary(runs, targets=TARGETS):
    """A row a target (name, executions, counted, quiet seconds, crashes), and what the goal still lacks.
    A crash takes what its target had before: counted anew from the next run, which is of mended code."""
    rows, lacks = [], []
    for target in targets:
        own, crashes = [], 0
        for run in (r for r in runs if r["target"] == target):
            if run["outcome"] == "ok":
                own.append(run)
            else:
                own, crashes = [], crashes + 1
        executions, quiet = sum(r["executions"] for r in own), longest_quiet(own)
        rows.append((target, executions, min(executions, MOST_COUNTED), quiet, crashes))
        if executions < LEAST_EXECUTIONS:
            lacks.append(f"{target}: {executions:,} of {LEAST_EXECUTIONS:,} executions")
        if quiet < QUIET_SECONDS:
            lacks.append(f"{target}: {quiet} of {QUIET_SECONDS} s without a new edge")
    counted = sum(r[2] for r in rows)
    if counted < GOAL_EXECUTIONS:
        lacks.append(f"{counted:,} of {GOAL_EXECUTIONS:,} executions count")
    return rows, lacks


def main():
    rows, lacks = summary(read())
    print(f"{'target':16} {'executions':>13} {'counted':>12} {'share':>6} {'longest quiet':>14} {'crashes':>8}")
    counted = sum(r[2] for r in rows)
    for name, executions, counts, quiet, crashes in rows:
        share = f"{100 * counts / max(counted, 1):.1f}%"
        print(f"{name:16} {executions:13,} {counts:12,} {share:>6} {quiet:12} s {crashes:8}")
    executions, quiet, crashes = sum(r[1] for r in rows), min(r[3] for r in rows), sum(r[4] for r in rows)
    print(f"{'all':16} {executions:13,} {counted:12,} {'':6} {quiet:12} s {crashes:8}")
    print("\n".join(["the goal lacks:", *lacks]) if lacks else "the goal holds")
    sys.exit(bool(lacks))


if __name__ == "__main__":
    main()
