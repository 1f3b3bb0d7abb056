#!/usr/bin/env python3
"""One process of OpenVINO GenAI: reads the GGUF into its continuous batching pipeline, measures, prints one JSON object.
Run by compare.py with the interpreter of the venv that has openvino-genai.

    openvino_runner.py MODEL THREADS WANTED     WANTED: JSON with warm_up (ids), and of prefill (ids), decode (count),
                                                clients ({"prompts": [ids, ...], "new": count}) what is to be measured
"""
import json
import sys
import time

import numpy as np
import openvino
import openvino_genai


def greedy(n):
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = n, True, False
    return config


def generate(pipeline, prompts, n_new):
    """Seconds for all `prompts` (token ids) with `n_new` tokens each, given at once."""
    ids = [openvino.Tensor(np.array([p], dtype=np.int64)) for p in prompts]
    started = time.monotonic()
    results = pipeline.generate(ids, [greedy(n_new)] * len(ids))
    seconds = time.monotonic() - started
    made = sum(len(r.m_generation_ids[0]) for r in results)
    if made != n_new * len(prompts):
        sys.exit(f"{made} tokens came, {n_new * len(prompts)} were asked for")
    return seconds


def main():
    model, threads, wanted = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 512  # a whole prompt in one step: its best setting for prefill
    scheduler.max_num_seqs = 64
    scheduler.cache_size = 1
    scheduler.enable_prefix_caching = False  # every prompt is new to all programs measured
    started = time.monotonic()
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    figures = {"load_s": time.monotonic() - started}
    generate(pipeline, [wanted["warm_up"]], 8)
    if "prefill" in wanted:
        figures["prefill"] = len(wanted["prefill"]) / generate(pipeline, [wanted["prefill"]], 1)
    if "decode" in wanted:
        first = generate(pipeline, [wanted["warm_up"][:1]], 1)
        figures["decode"] = wanted["decode"] / (generate(pipeline, [wanted["warm_up"][:1]], wanted["decode"] + 1) - first)
    if "clients" in wanted:
        prompts, n_new = wanted["clients"]["prompts"], wanted["clients"]["new"]
        figures[f"clients{len(prompts)}"] = len(prompts) * n_new / generate(pipeline, prompts, n_new)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
