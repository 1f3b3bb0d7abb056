#!/usr/bin/env python3
"""What a switch between the two sets of weights costs running streams: gaps between tokens just after each switch beside all others.

    weight_switch.py MODEL.gguf [--streams 4] [--switches 10] [--every 3]

MODEL is a Q8_0 file (`tandem quantize --to q8_0`). TANDEM_BIN_DIR as for the process tests. needs: pip install openai psutil pytest
"""
import argparse
import os
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../process"))
from conftest import Appliance  # noqa: E402

NEAR_S = 0.25  # after a switch is ordered


def percentile(values, p):
    return sorted(values)[min(len(values) - 1, int(p / 100 * len(values)))]


def stream(a, stop, gaps):
    """Endless text, one long answer after another; (end of the gap, its length) of each token but the first of an answer."""
    while not stop.is_set():
        before = None
        for chunk in a.client().chat.completions.create(model=a.model_name, stream=True, max_tokens=400, temperature=0,
                                                        messages=[{"role": "user", "content": "Count."}], extra_body={"ignore_eos": True}):
            now = time.monotonic()
            if before is not None and chunk.choices and chunk.choices[0].delta.content:
                gaps.append((now, now - before))
            before = now
            if stop.is_set():
                return


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--switches", type=int, default=10)
    parser.add_argument("--every", type=float, default=3, help="seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        a = Appliance(state, model=options.model)
        sets = a.status()["model"]["weight_sets"]
        print(f"full set {sets['full_bytes']:,} bytes, {sets['full_step_ms']:.2f} ms a step; lean {sets['lean_bytes']:,}, {sets['lean_step_ms']:.2f} ms")
        stop, gaps, switches = threading.Event(), [], []
        threads = [threading.Thread(target=stream, args=(a, stop, gaps)) for _ in range(options.streams)]
        for t in threads:
            t.start()
        for i in range(options.switches):
            time.sleep(options.every)
            switches.append((time.monotonic(), i % 2 == 0))
            status, text, _ = a.post("/admin/degrade", {"rung": "weights-4bit", "pin": "on" if i % 2 == 0 else "off"})
            assert status == 200, text
        time.sleep(options.every)
        stop.set()
        for t in threads:
            t.join()
        a.stop()
    near = [gap for at, gap in gaps if any(0 <= at - s <= NEAR_S for s, _ in switches)]
    far = [gap for at, gap in gaps if at > switches[0][0] - options.every / 2 and not any(0 <= at - s <= NEAR_S for s, _ in switches)]
    for name, values in (("after a switch", near), ("else", far)):
        print(f"{name:15} {len(values):6} gaps, ms: p50 {1e3 * percentile(values, 50):.2f}, p99 {1e3 * percentile(values, 99):.2f}, "
              f"longest {1e3 * max(values):.2f}")
    print(f"p99 after a switch / else: {percentile(near, 99) / percentile(far, 99):.2f}")


if __name__ == "__main__":
    main()
