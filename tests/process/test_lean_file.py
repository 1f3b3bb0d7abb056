"""weights.lean as a second file of the model: the rung computes with it, replies say so, texts are those of that file alone; one
that cannot serve costs the rung and nothing else, with the reason in the log and on the status page."""
import os
import re
import shutil
import struct
import time

import gguf
import pytest
from conftest import GEMMA3, SMOLLM2, Appliance
from test_weight_sets import Stream, pin, run, same_until, text_of


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The model in two sizes."""
    folder = tmp_path_factory.mktemp("models")
    made = {to: folder / f"smollm2-{to}.gguf" for to in ("q8_0", "q4_0")}
    for to, out in made.items():
        run("quantize", "--model", SMOLLM2, "--to", to, "--out", out)
    return made


@pytest.fixture(scope="module")
def box(files, tmp_path_factory):
    a = Appliance(tmp_path_factory.mktemp("state"), model=files["q8_0"], settings=["log.flush_ms=50", f"weights.lean={files['q4_0']}"])
    yield a
    assert a.stop() == 0, a.log()[-3000:]


@pytest.fixture
def switch(box):
    yield lambda state: pin(box, state)
    pin(box, "")


@pytest.fixture(scope="module")
def texts(files, tmp_path_factory):
    """What each file says, served alone."""
    found = {}
    for name, file in files.items():
        a = Appliance(tmp_path_factory.mktemp("alone"), model=file, settings=["weights.lean=off"])
        found[name] = text_of(a)[0]
        assert a.stop() == 0
    assert found["q8_0"] != found["q4_0"]
    return found


def weight_sets(a):
    return a.status()["model"]["weight_sets"]


def wait_for(a, text, n=1):
    end = time.time() + 60
    while a.log().count(text) < n:
        assert time.time() < end, f"no {n} x {text!r} in:\n{a.log()[-3000:]}"
        time.sleep(0.02)


def test_both_sets_are_measured_and_shown(box, files):
    sets = weight_sets(box)
    assert sets["no_lean_reason"] == "" and sets["lean_file"] == str(files["q4_0"]), sets
    assert 0.5 < sets["lean_bytes"] / sets["full_bytes"] < 0.6 and 0 < sets["lean_step_ms"] < sets["full_step_ms"]
    assert 1 < sets["full_perplexity"] < sets["lean_perplexity"] < 1.6 * sets["full_perplexity"]
    page = box.get("/status")[1]
    assert "Full set" in page and f"({files['q4_0']})" in page and "8-bit set" not in page
    memory = box.status()["memory"]
    assert memory["lean_weights_bytes"] >= sets["lean_bytes"]
    assert memory["predicted_bytes"] == sum(memory[k] for k in ("weights_bytes", "lean_weights_bytes", "kv_pool_bytes", "scratch_bytes", "worker_bytes", "other_bytes"))


def test_each_set_says_what_its_file_alone_says(box, switch, texts):
    assert text_of(box) == (texts["q8_0"], [])
    switch("on")
    assert text_of(box) == (texts["q4_0"], ["weights-4bit"])
    assert text_of(box) == (texts["q4_0"], ["weights-4bit"])  # from pages that the lean set computed
    switch("off")
    assert text_of(box) == (texts["q8_0"], [])
    by_set = {(r["weights"], r["degradation"]) for r in box.wait_for_rows(4)}
    assert by_set == {("full", ""), ("4-bit", "weights-4bit")}, by_set


def test_streams_go_over_and_back(box, switch, texts):
    there = Stream(box)
    there.wait_for(15)
    switch("on")
    assert 15 < same_until(texts["q8_0"], there.ended()) and there.degraded == ["weights-4bit"]
    back = Stream(box)
    back.wait_for(15)
    switch("off")
    assert 15 < same_until(texts["q4_0"], back.ended()) and back.degraded == ["weights-4bit"]


def test_kill_9_of_the_worker_resumes_byte_for_byte(box, switch, texts):
    switch("on")
    stream = Stream(box)
    stream.wait_for(40)
    assert box.kill_worker() == 1
    assert stream.ended() == texts["q4_0"] and stream.degraded == ["weights-4bit"]
    assert text_of(box) == (texts["q4_0"], ["weights-4bit"])


def test_prefill_and_decode_workers_share_its_packed_file(files, texts, start):
    a = start(model=files["q8_0"], settings=["workers.prefill=1", "workers.decode=1", f"weights.lean={files['q4_0']}"])
    assert text_of(a) == (texts["q8_0"], [])
    pin(a, "on")
    assert text_of(a) == (texts["q4_0"], ["weights-4bit"])
    assert sum(n.endswith(".weights") for n in os.listdir(os.path.join(a.state, "cache"))) == 2
    assert len(re.findall("lean weights loaded .*cache=mapped", a.log())) == 1, a.log()  # the one that came second


def test_the_next_start_maps_and_remembers_and_another_file_is_measured_anew(files, tmp_path):
    """Its packed weights and both sets' figures are stored; neither is another file's."""
    lean = tmp_path / "lean.gguf"
    shutil.copy(files["q4_0"], lean)

    def life(until):
        a = Appliance(tmp_path / "state", model=files["q8_0"], settings=[f"weights.lean={lean}", "cache.kv_pool_bytes=268435456"])
        sets, log = weight_sets(a), a.log()
        wait_for(a, until, n=2)
        assert a.stop() == 0
        return sets, "cache=mapped" in log, "weight sets measured" in log

    first, is_mapped, is_measured = life("repacked weights stored")
    assert (is_mapped, is_measured) == (False, True)
    again, is_mapped, is_measured = life("packed weights are whole")
    assert (is_mapped, is_measured) == (True, False) and again == first
    run("quantize", "--model", SMOLLM2, "--to", "q5_0", "--out", tmp_path / "other.gguf")
    os.replace(tmp_path / "other.gguf", lean)
    other, is_mapped, is_measured = life("repacked weights stored")  # the model's too, for the figures
    assert (is_mapped, is_measured) == (False, True)
    assert other["lean_bytes"] > first["lean_bytes"] and other["lean_perplexity"] != first["lean_perplexity"]


def cut(files, tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes(files["q4_0"].read_bytes()[:-1000])
    return path


def nonsense(files, tmp_path):
    """A whole file whose numbers overflow."""
    path = tmp_path / "nonsense.gguf"
    shutil.copy(files["q4_0"], path)
    norm = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.0.attn_norm.weight")
    with open(path, "r+b") as f:
        f.seek(int(norm.data_offset))
        f.write(struct.pack("<f", 3e38) * int(norm.n_elements))
    return path


def text_file(files, tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("no model\n" * 1000)
    return path


CASES = {
    "missing": (lambda files, tmp_path: tmp_path / "none.gguf", [], ["weights.lean: cannot open model ", "none.gguf: No such file"]),
    "a folder": (lambda files, tmp_path: tmp_path, [], ["is a folder; a GGUF file is needed"]),
    "truncated": (cut, [], ["cut.gguf", "truncated"]),
    "no GGUF": (text_file, [], ["text.gguf", "not a GGUF"]),
    "nonsense": (nonsense, [], ["nonsense.gguf: the text to measure the weight sets with failed"]),
    "another model": (lambda files, tmp_path: GEMMA3, [], [GEMMA3, "is not of the same model as", "smollm2-q8_0.gguf",
                                                          "architecture must be llama, found gemma3", "tandem quantize --to q4_0"]),
    "the model itself": (lambda files, tmp_path: files["q8_0"], [], ["the model's own file"]),
    "too large": (lambda files, tmp_path: files["q4_0"], ["cache.kv_pool_bytes=100000000", "workers.memory_budget_bytes=BUDGET"],
                  ["q4_0.gguf: memory: ", "MiB lean weights + ", "workers.memory_budget_bytes"]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_cannot_serve_costs_the_rung_alone(case, files, texts, start, tmp_path):
    make, settings, reasons = CASES[case]
    if any("BUDGET" in s for s in settings):  # of which the lean set is the last part
        fits = start(model=files["q8_0"], settings=[s for s in settings if "BUDGET" not in s] + [f"weights.lean={files['q4_0']}"])
        memory = fits.status()["memory"]
        budget = memory["predicted_bytes"] - memory["lean_weights_bytes"] // 2
        settings = [s.replace("BUDGET", str(budget)) for s in settings]
    a = start(model=files["q8_0"], settings=[f"weights.lean={make(files, tmp_path)}", *settings])
    assert text_of(a) == (texts["q8_0"], [])
    sets = weight_sets(a)
    assert (sets["lean_bytes"], sets["lean_file"]) == (0, "") or case == "nonsense"  # loaded, and not used
    refused = run("degrade", "set", "weights-4bit", "--url", a.url, code=1)
    rung = next(r for r in a.status()["ladder"] if r["rung"] == "weights-4bit")
    assert not rung["is_active"] and a.status()["readiness"]["state"] == "ready"
    for told in (sets["no_lean_reason"], rung["skipped"], refused, a.log()):
        for reason in ["there is no lean weight set: ", *reasons]:
            assert reason in told, (reason, told)
    assert "rung skipped" in a.log() and "skipped: there is no lean weight set" in a.get("/status")[1]


def test_a_file_put_right_serves_when_the_next_worker_starts(files, texts, start, tmp_path):
    path = tmp_path / "late.gguf"
    a = start(model=files["q8_0"], settings=[f"weights.lean={path}"])
    assert "late.gguf: No such file" in weight_sets(a)["no_lean_reason"]
    shutil.copy(files["q4_0"], path)
    a.kill_worker()
    end = time.time() + 60
    while a.get("/ready")[0] != 200 or weight_sets(a)["no_lean_reason"]:
        assert time.time() < end, weight_sets(a)
        time.sleep(0.05)
    pin(a, "on")
    assert text_of(a) == (texts["q4_0"], ["weights-4bit"])


def test_a_reload_names_it_as_waiting_for_a_restart(files, tmp_path):
    config = tmp_path / "tandem.toml"
    config.write_text('[weights]\nlean = "off"\n')
    a = Appliance(tmp_path / "state", model=files["q8_0"], config=config)
    try:
        config.write_text(f'[weights]\nlean = "{files["q4_0"]}"\n')
        assert a.post("/admin/reload", {})[0] == 200
        wait_for(a, "changed keys wait for a restart")
        assert "weights.lean" in a.log().split("changed keys wait for a restart")[1]
        config.write_text('[weights]\nlean = "lean.gguf"\n')
        status, body, _ = a.post("/admin/reload", {})
        assert status != 200 and "absolute path of a GGUF file" in body and "lean.gguf" in body
    finally:
        assert a.stop() == 0


def test_the_tools_say_how_to_look_at_such_a_file(files, tmp_path):
    text = tmp_path / "text"
    text.write_text("The sea is large and the wind blows over it from the west for most of the year. " * 4)
    assert "tandem eval or bench --model THAT_FILE" in run("eval", "--model", SMOLLM2, "--text", text, "--weights", "lean", code=78)
    config = tmp_path / "tandem.toml"
    config.write_text(f'[server]\nlisten = "127.0.0.1:0"\n[weights]\nlean = "{files["q4_0"]}"\n')
    told = run("doctor", "--model", files["q8_0"], "--state", tmp_path, "--config", config)
    assert "lean weights" in told and str(files["q4_0"]) in told and "comes on top" in told
