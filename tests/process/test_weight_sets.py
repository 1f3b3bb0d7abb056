"""The rung weights-4bit on a real 8-bit model: streams go on over a switch and over a worker's death, replies say so, texts are
those of a run with that set from the start; without a lean set the rung is skipped with the reason."""
import json
import math
import os
import subprocess
import time

import pytest
import test_kill
from conftest import BIN, SMOLLM2, Appliance, sse_events

TANDEM = os.path.join(BIN, "tandem")
N_TOKENS = 120
ASK = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": N_TOKENS, "temperature": 0, "ignore_eos": True}
ACTIVE = 'llm_degradation_active{rung="weights-4bit"}'


def run(*args, code=0):
    done = subprocess.run([TANDEM, *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def q8(tmp_path_factory):
    out = tmp_path_factory.mktemp("q8") / "smollm2-q8_0.gguf"
    run("quantize", "--model", SMOLLM2, "--to", "q8_0", "--out", out)
    return out


@pytest.fixture(scope="module")
def box(q8, tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("state"), model=q8, settings=["log.flush_ms=50"])
    yield a
    assert a.stop() == 0, a.log()[-3000:]


def pin(a, state):
    """"on", "off" or "" (the load decides: with nothing to do, off); returns when the rung is so."""
    run("degrade", *(["set", "weights-4bit"] + (["--off"] if state == "off" else []) if state else ["clear", "weights-4bit"]), "--url", a.url)
    end = time.time() + 10
    while a.metrics()[ACTIVE] != (1 if state == "on" else 0):
        assert time.time() < end
        time.sleep(0.02)


@pytest.fixture
def switch(box):
    yield lambda state: pin(box, state)
    pin(box, "")


def text_of(a, **more):
    status, text, headers = a.post("/v1/chat/completions", {**ASK, **more})
    assert status == 200, text
    reply = json.loads(text)
    assert (headers["X-Tandem-Degraded"] or "") == ",".join(reply["tandem"]["degraded"])
    return reply["choices"][0]["message"]["content"], reply["tandem"]["degraded"]


class Stream(test_kill.Stream):
    """A streamed answer, read as it comes."""

    def __init__(self, a, **more):
        a.name = a.model_name
        super().__init__(a, {**{k: v for k, v in ASK.items() if k != "ignore_eos"}, "extra_body": {"ignore_eos": True, **more}})

    def wait_for(self, n_pieces):
        end = time.time() + 60
        while len(self.times) < n_pieces:
            assert time.time() < end and self.is_alive()
            time.sleep(0.002)

    def ended(self):
        result = self.result()
        assert result["error"] is None and result["usage"][1] == N_TOKENS
        return result["texts"][0]


def same_until(a, b):
    return next((i for i in range(min(len(a), len(b))) if a[i] != b[i]), min(len(a), len(b)))


def test_both_sets_are_measured_and_shown(box):
    sets = box.status()["model"]["weight_sets"]
    assert sets["no_lean_reason"] == "", sets
    assert 0.5 < sets["lean_bytes"] / sets["full_bytes"] < 0.54 and 0 < sets["lean_step_ms"] < sets["full_step_ms"]
    assert 1 < sets["full_perplexity"] < sets["lean_perplexity"] < 1.6 * sets["full_perplexity"]
    assert f"perplexity {sets['lean_perplexity']:.1f} on a built-in text" in box.get("/status")[1]
    assert "8-bit set" in box.get("/status")[1] and "4-bit set" in box.get("/status")[1]
    rung = next(r for r in box.status()["ladder"] if r["rung"] == "weights-4bit")
    assert rung["skipped"] == "" and not rung["is_active"]


def test_streams_go_over_to_the_lean_set_and_back_and_say_so(box, switch):
    full, degraded = text_of(box)
    assert degraded == []
    streams = [Stream(box, seed=i) for i in range(3)]
    for s in streams:
        s.wait_for(15)
    switch("on")
    mixed = [s.ended() for s in streams]
    assert all(s.degraded == ["weights-4bit"] for s in streams)
    assert all(15 < same_until(full, m) for m in mixed)
    lean, degraded = text_of(box)
    assert degraded == ["weights-4bit"] and lean != full
    assert text_of(box) == (lean, ["weights-4bit"])  # from pages that the lean set computed
    back = Stream(box)
    back.wait_for(15)
    switch("off")
    assert 15 < same_until(lean, back.ended()) and back.degraded == ["weights-4bit"]
    assert text_of(box) == (full, [])
    rows = box.wait_for_rows(7)
    by_set = {(r["weights"], r["degradation"]) for r in rows}
    assert by_set == {("full", ""), ("full,4-bit", "weights-4bit"), ("4-bit", "weights-4bit")}, by_set
    assert box.metrics()['llm_requests_degraded_total{rung="weights-4bit"}'] == sum(r["degradation"] != "" for r in rows)


def test_a_lean_text_is_that_of_an_appliance_that_was_lean_from_the_start(box, switch, q8, start):
    switch("on")
    lean, _ = text_of(box)
    other = start(model=q8)
    pin(other, "on")
    assert text_of(other) == (lean, ["weights-4bit"])


def test_kill_9_after_a_switch_resumes_byte_for_byte(box, switch):
    full, _ = text_of(box)
    switch("on")
    lean, _ = text_of(box)
    stream = Stream(box)
    stream.wait_for(40)
    assert box.kill_worker() == 1
    assert stream.ended() == lean and stream.degraded == ["weights-4bit"]
    assert box.metrics()['llm_degradation_active{rung="weights-4bit"}'] == 1
    assert text_of(box) == (lean, ["weights-4bit"])  # the new worker was told
    # In the middle of a switch: what was computed before it is computed again as it was.
    pin(box, "off")
    stream = Stream(box)
    stream.wait_for(40)
    run("degrade", "set", "weights-4bit", "--url", box.url)
    box.kill_worker()
    text = stream.ended()
    assert same_until(full, text) > 40 and stream.degraded == ["weights-4bit"]
    pin(box, "off")
    box.wait_ready()
    assert text_of(box) == (full, [])


def test_prefill_and_decode_workers_both_get_the_order(box, switch, q8, start):
    pair = start(model=q8, settings=["workers.prefill=1", "workers.decode=1"])
    assert text_of(pair) == text_of(box)
    switch("on")
    pin(pair, "on")
    assert text_of(pair) == text_of(box)
    assert text_of(pair)[1] == ["weights-4bit"]
    stream = Stream(pair)
    stream.wait_for(20)
    pair.kill_worker()  # both
    assert stream.ended() == text_of(box)[0] and stream.degraded == ["weights-4bit"]


@pytest.mark.parametrize("model, settings, reason", [
    ("4-bit", [], "only a model that is mostly Q8_0 has one"),
    ("8-bit", ["weights.lean=off"], "weights.lean is off")])
def test_without_a_lean_set_the_rung_is_skipped_with_the_reason(start, q8, model, settings, reason):
    a = start(model=SMOLLM2 if model == "4-bit" else q8, settings=settings)
    assert reason in run("degrade", "set", "weights-4bit", "--url", a.url, code=1)
    rung = next(r for r in a.status()["ladder"] if r["rung"] == "weights-4bit")
    assert reason in rung["skipped"] and not rung["is_active"]
    assert 'rung skipped' in a.log() and reason in a.log()
    assert a.status()["model"]["weight_sets"]["lean_bytes"] == 0


def test_the_lean_set_costs_no_more_than_a_file_of_q4_0(q8, tmp_path):
    run("quantize", "--model", q8, "--to", "q4_0", "--out", tmp_path / "q4_0.gguf")
    loss = lambda model, weights: json.loads(run("eval", "--model", model, "--text", "/usr/share/common-licenses/GPL-3", "--tokens", 512,
                                                 "--weights", weights, "--json").split("\n")[0])["mean_nll"]
    lean, q4_0, full = loss(q8, "lean"), loss(tmp_path / "q4_0.gguf", "full"), loss(q8, "full")
    assert full < lean < q4_0 + math.log(1.01)  # perplexity within 1 %


def test_eval_and_bench_take_a_set(q8, tmp_path):
    text = tmp_path / "text"
    text.write_text("The sea is large and the wind blows over it from the west for most of the year. " * 8)
    loss = {s: json.loads(run("eval", "--model", q8, "--text", text, "--weights", s, "--json").split("\n")[0])["mean_nll"] for s in ("full", "lean")}
    assert loss["full"] != loss["lean"] and abs(loss["full"] - loss["lean"]) < 0.3
    out = run("bench", "--model", q8, "--weights", "lean", "--prompt", 16, "--gen", 4, "--repeat", 1)
    assert "decode tokens/s" in out
    assert "there is no lean weight set" in run("eval", "--model", SMOLLM2, "--text", text, "--weights", "lean", code=78)
