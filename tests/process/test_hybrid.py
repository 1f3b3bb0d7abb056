"""Prefill on the processor, decode on a device: real processes and a real client, the device being the stand-in of
tests/simt. Every fault of a device ends as design.md 2 has it: the stream goes on, and everybody is told."""
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import test_weight_sets as sets
from conftest import BIN, Appliance

SIMT = os.path.abspath(os.path.join(BIN, "../simt"))
HYBRID = ["workers.prefill=1", "workers.decode=1", "gpu.device=0", f"workers.libexec_dir={SIMT}", "cpu.threads=1",
          "model.context_tokens=512", "batch.max_batch_size=4", "log.flush_ms=50", "weights.lean=off"]  # few launches at a start, see below
# Random weights and a real vocabulary: hundreds of tokens in a second.
MODEL = os.path.join(os.path.dirname(__file__), "../golden/families/llama.gguf")
GEMMA = os.path.join(os.path.dirname(__file__), "../golden/families/gemma3.gguf")  # 7 layers, with and without a window
N_TOKENS = 150
ASK = {"messages": [{"role": "user", "content": "the quick brown fox jumps over the lazy dog and then the fox and the dog sit there together"}],
       "temperature": 0, "max_tokens": N_TOKENS, "extra_body": {"ignore_eos": True}}
# A step is some 13 launches: this is in the middle of the text, and after the canary.
IN_THE_TEXT = 900


@pytest.fixture
def device(monkeypatch, tmp_path):
    """Sets what the stand-in is and does: device(options…, faults=[a line a life])."""
    def set_up(options="", faults=(), driver=True, **environment):
        monkeypatch.setenv("LD_LIBRARY_PATH", os.path.join(SIMT, "driver") if driver else str(tmp_path))
        monkeypatch.setenv("TANDEM_SIMT", options)
        file = tmp_path / "faults"
        file.write_text("".join(line + "\n" for line in faults))
        monkeypatch.setenv("TANDEM_SIMT_FAULTS", str(file))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return file
    return set_up


def text_of(a, ask=ASK, **more):
    reply = a.client().chat.completions.create(model=a.model_name, **{**ask, **more})
    return reply.choices[0].message.content


def stream_of(a, ask=ASK, **more):
    """The text of a stream that must end in order, with all its tokens."""
    pieces, reason, usage = [], None, None
    for chunk in a.client().chat.completions.create(model=a.model_name, stream=True, stream_options={"include_usage": True}, **{**ask, **more}):
        usage = chunk.usage or usage
        if chunk.choices:
            pieces.append(chunk.choices[0].delta.content or "")
            reason = chunk.choices[0].finish_reason or reason
    assert reason == "length" and usage.completion_tokens == N_TOKENS
    return "".join(pieces)


def worker(a, role="decode"):
    return next(w for w in a.status()["workers"] if w["role"] == role)


def wait_for(what, seconds=60):
    end = time.time() + seconds
    while not what():
        assert time.time() < end, "it did not happen"
        time.sleep(0.05)


def up(a):
    m = a.metrics()
    return m['llm_worker_up{device="gpu",role="decode"}'], m['llm_worker_up{device="cpu",role="decode"}']


@pytest.fixture
def hybrid(start):
    return lambda settings=(): start(model=MODEL, settings=HYBRID + list(settings))


def processor_says(folder, model):
    """What two workers on the processor say: tokens, their margins, the text."""
    settings = [s for s in HYBRID if not s.startswith(("gpu.", "workers.libexec"))]
    a = Appliance(folder, model=model, settings=settings)
    choice = a.client().chat.completions.create(model=a.model_name, **ASK, logprobs=True, top_logprobs=2).choices[0]
    a.stop()
    tops = [c.top_logprobs for c in choice.logprobs.content]
    return [t[0].token for t in tops], [t[0].logprob - t[1].logprob for t in tops], choice.message.content


def check_text(a, tokens, margins):
    """The text of `a` is that of the processor up to the first near-tie."""
    choice = a.client().chat.completions.create(model=a.model_name, **ASK, logprobs=True, top_logprobs=2).choices[0]
    got = [c.token for c in choice.logprobs.content]
    assert len(got) == N_TOKENS
    same = 0
    for token, wanted, margin in zip(got, tokens, margins):
        if margin < 0.01:  # both sides differ by less in these models
            break
        assert token == wanted, f"token {same}"
        same += 1
    return same


@pytest.fixture(scope="module")
def on_processor(tmp_path_factory):
    return processor_says(tmp_path_factory.mktemp("cpu"), MODEL)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What the device says when nothing happens to it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("LD_LIBRARY_PATH", os.path.join(SIMT, "driver"))
    a = Appliance(tmp_path_factory.mktemp("device"), model=MODEL, settings=HYBRID)
    text = text_of(a)
    a.stop()
    patch.undo()
    return text


def test_text_is_that_of_the_processor_up_to_a_near_tie(hybrid, device, on_processor):
    device()
    a = hybrid()
    assert a.get("/ready")[1].find('"ready"') > 0
    assert up(a) == (1, 0)
    assert check_text(a, *on_processor[:2]) >= 10
    m = a.metrics()
    assert m["llm_handoff_pages_total"] > 0
    assert "device=gpu" in a.log()
    # Each worker tells its own place, not that of the one that speaks for all.
    assert worker(a)["device"] == "gpu" and worker(a)["isa"].startswith("sm_")
    assert worker(a, "prefill")["device"] == "cpu" and not worker(a, "prefill")["isa"].startswith("sm_")
    # Prompts were computed by the prefill worker only.
    assert worker(a)["computed_tokens"] <= 5  # a forced token
    assert re.search(r"batch sizes run most_sequences=4 ", a.log())
    assert a.stop() == 0


@pytest.mark.parametrize("fault,cause", [(f"sticky_at_launch {IN_THE_TEXT} sticky_error 214", "device"),
                                         (f"lose_at_launch {IN_THE_TEXT}", "device"), (f"hang_at_launch {IN_THE_TEXT}", "watchdog")])
def test_a_fault_in_a_stream_is_a_pause(hybrid, device, expected, fault, cause):
    file = device(faults=[fault])
    a = hybrid(["workers.watchdog_ms=8000"])
    assert file.read_text() == ""
    assert stream_of(a) == expected
    m = a.metrics()
    assert m[f'llm_worker_restarts_total{{cause="{cause}",role="decode"}}'] == 1
    assert up(a) == (1, 0)
    assert '"ready"' in a.get("/ready")[1]
    assert a.stop() == 0


def test_a_device_that_keeps_failing_is_given_up_and_comes_back(hybrid, device, expected):
    # Three lives fail in the middle of a text; the probe and all later ones are sound.
    device(faults=[f"sticky_at_launch {IN_THE_TEXT}"] * 3)
    a = hybrid(["gpu.cooldown_ms=15000"])
    text = stream_of(a)
    assert text[:20] == expected[:20]
    status, body, _ = a.get("/ready")
    assert status == 200 and '"degraded"' in body and "runs on the processor" in body, body
    assert worker(a)["isa"] == worker(a, "prefill")["isa"]
    assert worker(a)["device"] == "cpu" and "3 faults" in worker(a)["device_trouble"]
    assert up(a) == (0, 1)
    assert "device given up" in a.log()
    wait_for(lambda: up(a) == (1, 0))
    assert '"ready"' in a.get("/ready")[1]
    assert a.metrics()['llm_worker_restarts_total{cause="device",role="decode"}'] == 3
    assert a.metrics()['llm_worker_restarts_total{cause="device-back",role="decode"}'] == 1
    assert text_of(a) == expected
    assert a.stop() == 0


@pytest.mark.parametrize("setup,says", [
    (dict(driver=False), "no NVIDIA driver"),
    (dict(TANDEM_SIMT_DRIVER="12040"), "too old"),
    (dict(CUDA_VISIBLE_DEVICES="7"), "CUDA_VISIBLE_DEVICES"),
    (dict(options="n_devices 0"), "no device"),
    (dict(options="device_bytes 100000"), "device memory"),
    (dict(options="other_process_bytes 4294867296"), "device memory"),
    (dict(options="fail_malloc_at 2"), "device memory"),
])
def test_without_a_usable_device_the_processor_serves_and_says_why(hybrid, device, on_processor, setup, says):
    device(**setup)
    a = hybrid()
    status, body, _ = a.get("/ready")
    assert status == 200 and '"degraded"' in body, body
    assert says in body, body
    assert up(a) == (0, 1)
    assert text_of(a) == on_processor[2]
    assert "device given up" in a.log()
    assert a.stop() == 0


def test_a_driver_that_comes_late_is_used(hybrid, device, expected, tmp_path):
    device(driver=False)
    a = hybrid(["gpu.cooldown_ms=1000"])
    status, body, _ = a.get("/ready")
    assert status == 200 and '"degraded"' in body and "no NVIDIA driver" in body, body
    assert up(a) == (0, 1)
    for name in os.listdir(os.path.join(SIMT, "driver")):
        os.symlink(os.path.join(SIMT, "driver", name), tmp_path / name)
    wait_for(lambda: up(a) == (1, 0))
    assert '"ready"' in a.get("/ready")[1]
    assert text_of(a) == expected
    assert a.stop() == 0


def uploaded(a):
    """The figures of the line that tells what a device took."""
    line = re.findall(r"weights uploaded.*", a.log())[-1]
    return {name: int(value) for name, value in re.findall(r"(layers|weights_bytes|workspace_bytes)=(\d+)", line)}


def test_layers_that_a_small_card_does_not_hold_stay_on_the_processor(start, device, tmp_path):
    device()
    a = start(model=GEMMA, settings=HYBRID)
    whole = uploaded(a)
    assert whole["layers"] == 7 and worker(a)["device_layers"] == 7 and worker(a, "prefill")["device_layers"] == 0
    assert a.stop() == 0
    # K/V of one sequence of the whole context: 33 pages of 7 layers, one K/V head of 32, f16.
    budget = whole["weights_bytes"] + whole["workspace_bytes"] + 33 * 7 * 16 * 32 * 2 * 2
    a = start(model=GEMMA, settings=HYBRID + [f"gpu.memory_budget_bytes={budget}"])
    assert uploaded(a)["layers"] == 7
    assert a.stop() == 0
    a = start(model=GEMMA, settings=HYBRID + [f"gpu.memory_budget_bytes={budget - 60000}"])
    n = worker(a)["device_layers"]
    assert 1 <= n <= 6 and uploaded(a)["layers"] == n
    line = re.findall(r"the model is larger than the device.*", a.log())[-1]
    assert f"device_layers={n} processor_layers={7 - n}" in line and f"for {n + 1} of 7 layers, more than" in line
    assert a.get("/ready")[1].find('"ready"') > 0
    assert up(a) == (1, 0)
    assert worker(a)["isa"].startswith("sm_") and worker(a)["isa"].endswith(worker(a, "prefill")["isa"])
    assert check_text(a, *processor_says(tmp_path / "cpu", GEMMA)[:2]) >= 10
    assert a.metrics()["llm_handoff_pages_total"] > 0
    assert a.stop() == 0


def test_a_cut_model_survives_its_worker(hybrid, device, on_processor):
    file = device(faults=[f"lose_at_launch {IN_THE_TEXT // 2}"])
    a = hybrid(["gpu.layers=1"])
    assert worker(a)["device_layers"] == 1
    text = stream_of(a)
    assert file.read_text() == "" and a.metrics()['llm_worker_restarts_total{cause="device",role="decode"}'] == 1
    assert text == text_of(a)
    assert check_text(a, *on_processor[:2]) >= 10
    assert a.stop() == 0


def test_prompts_of_the_lengths_that_were_measured_are_the_devices(start, device, tmp_path):
    device()
    cache = tmp_path / "cache"
    settings = HYBRID + ["prefill.placement=auto", f"paths.cache_dir={cache}", "cache.prefix=false"]
    a = start(model=MODEL, settings=settings)
    assert len(re.findall(r"prompts measured", a.log())) == 2 and "source=measured" in a.log()
    first = a.status()["device_prompts"]
    kept = (cache / "prompt_placement").read_text()
    assert len(kept.split()) == 4 and kept.split()[2:] == [str(first["from_tokens"]), str(first["to_tokens"])]
    assert a.stop() == 0
    # As kept, whatever a measurement would say today: prompts of up to 30 tokens.
    (cache / "prompt_placement").write_text(" ".join(kept.split()[:2] + ["1", "30"]) + "\n")
    a = start(model=MODEL, settings=settings)
    assert "prompts measured" not in a.log() and "source=kept" in a.log()
    assert a.status()["device_prompts"] == {"from_tokens": 1, "to_tokens": 30}

    def handed_over(text):
        pages, computed = a.metrics().get("llm_handoff_pages_total", 0), worker(a, "prefill")["computed_tokens"]
        reply = a.client().completions.create(model=a.model_name, prompt=text, temperature=0, max_tokens=5, extra_body={"ignore_eos": True})
        assert reply.usage.completion_tokens == 5
        wait_for(lambda: worker(a)["batch"] == 0)
        time.sleep(0.6)  # counters come by heartbeat
        return reply.usage.prompt_tokens, a.metrics().get("llm_handoff_pages_total", 0) - pages, worker(a, "prefill")["computed_tokens"] - computed

    n, pages, computed = handed_over("the quick brown fox")
    assert n <= 30 and pages == 0 and computed == 0
    n, pages, computed = handed_over("the quick brown fox jumps over the lazy dog and then " * 4)
    assert n > 30 and pages > 0 and computed >= n
    assert a.stop() == 0


def test_a_prompt_of_the_device_goes_on_there_after_a_fault(start, device, tmp_path):
    cache = tmp_path / "cache"
    settings = HYBRID + ["prefill.placement=auto", f"paths.cache_dir={cache}"]
    device()
    a = start(model=MODEL, settings=settings)
    assert a.stop() == 0
    kept = (cache / "prompt_placement").read_text().split()
    (cache / "prompt_placement").write_text(" ".join(kept[:2] + ["1", "400"]) + "\n")
    file = device(faults=[f"lose_at_launch {IN_THE_TEXT}"])
    a = start(model=MODEL, settings=settings)
    text = stream_of(a)
    assert file.read_text() == "" and a.metrics()['llm_worker_restarts_total{cause="device",role="decode"}'] == 1
    assert text == text_of(a)
    assert worker(a, "prefill")["computed_tokens"] == 0
    assert a.stop() == 0


def test_two_workers_on_one_card_need_a_budget(device, tmp_path):
    device()
    with pytest.raises(AssertionError, match="gpu.memory_budget_bytes"):
        Appliance(tmp_path / "two", model=MODEL, settings=HYBRID + ["workers.decode=2"])


def test_two_workers_share_a_card_within_their_budgets(start, device, expected):
    device()
    a = start(model=MODEL, settings=HYBRID + ["workers.decode=2", "gpu.memory_budget_bytes=100000000"])
    wait_for(lambda: up(a) == (2, 0))
    assert text_of(a) == expected
    assert a.stop() == 0
    # 1.5 GiB each of 2 GiB: the processor serves, and everybody is told why.
    device(options=f"device_bytes {2 << 30}")
    a = start(model=MODEL, settings=HYBRID + ["workers.decode=2", f"gpu.memory_budget_bytes={3 << 29}"])
    wait_for(lambda: up(a) == (0, 2))
    body = a.get("/ready")[1]
    assert "2 workers of 1536.0 MiB each" in body and "3072.0 MiB" in body and "2048.0 MiB" in body and f"at most {1 << 30}" in body, body
    assert len(text_of(a)) > 0
    assert a.stop() == 0


def test_a_model_larger_than_card_and_host_is_refused_with_both_sums(start, device):
    device(options="device_bytes 100000")
    a = start(model=MODEL, settings=HYBRID + ["workers.memory_budget_bytes=20000000"], wait_ready=False)
    wait_for(lambda: "refused" in [w["state"] for w in a.status()["workers"]])
    wait_for(lambda: "device given up" in a.log())
    status, body, _ = a.get("/ready")
    assert status == 503 and "workers.memory_budget_bytes" in body and "weights +" in body, body
    assert "not even one of 2 layers fits the device: device memory:" in a.log()
    code, reply, _ = a.post("/v1/chat/completions", {"messages": ASK["messages"]})
    assert code == 503 and "weights" in reply, reply
    assert a.stop() == 0


@pytest.fixture(scope="module")
def eight_bit(tmp_path_factory):
    """A model that is large enough for its lean set to be faster on the processor."""
    out = tmp_path_factory.mktemp("model") / "eight_bit.gguf"
    tool = os.path.join(os.path.dirname(__file__), "../tools/make_tiny_gguf.py")
    shape = ["--hidden", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--ffn", "512"]
    subprocess.run([sys.executable, tool, "llama", out, "--type", "Q8_0", *shape], check=True)
    return out


@pytest.fixture
def start_lean(start, device, eight_bit):
    """Bytes cost no time on the stand-in: products with whole nested matrices (GgmlType::kQ8_0Nested) are slowed by hand, so that
    the lean set serves. The context is too short for the text that tells the sets' perplexities."""
    device(f"slow_us 300 slow_kernel matvec_kernel<(tandem::GgmlType){0x10000}")
    settings = [s for s in HYBRID if not s.startswith(("weights.lean", "model.context_tokens"))] + ["model.context_tokens=256"]
    return lambda *more: start(model=eight_bit, settings=settings + list(more))


def test_the_rung_weights_4bit_takes_the_device_along(start_lean):
    a = start_lean()
    figures = a.status()["model"]["weight_sets"]
    assert worker(a)["device"] == "gpu" and figures["no_lean_reason"] == "", figures
    assert 0.5 < figures["lean_bytes"] / figures["full_bytes"] < 0.54 and 0 < figures["lean_step_ms"] < figures["full_step_ms"]
    full, degraded = sets.text_of(a)
    assert degraded == []
    stream = sets.Stream(a)
    stream.wait_for(15)
    sets.pin(a, "on")
    mixed = stream.ended()
    assert stream.degraded == ["weights-4bit"] and 15 <= sets.same_until(full, mixed) < len(full)
    lean, degraded = sets.text_of(a)
    assert degraded == ["weights-4bit"] and lean != full and lean != mixed
    # Each worker was told whose lean set serves, by what it measured itself.
    measured = [tuple(map(float, m)) for m in re.findall(r"weight sets measured full_ms=(\S+) lean_ms=(\S+)", a.log())]
    assert len(measured) == 2 and a.log().count("set=lean") == sum(lean_ms * 1.05 <= full_ms for full_ms, lean_ms in measured)
    # Its death is a pause, and the next one is told too.
    stream = sets.Stream(a)
    stream.wait_for(40)
    os.kill(worker(a)["pid"], signal.SIGKILL)
    assert stream.ended() == lean and stream.degraded == ["weights-4bit"]
    assert sets.text_of(a) == (lean, ["weights-4bit"])
    sets.pin(a, "")
    assert sets.text_of(a) == (full, [])
    assert {r["weights"] for r in a.wait_for_rows(6)} >= {"full", "full,4-bit"}
    assert up(a) == (1, 0)
    assert a.stop() == 0


def test_both_sides_of_a_cut_model_go_over_to_the_lean_set(start_lean):
    a = start_lean("gpu.layers=1")
    assert worker(a)["device_layers"] == 1 and a.status()["model"]["weight_sets"]["no_lean_reason"] == ""
    full, degraded = sets.text_of(a)
    assert degraded == []
    sets.pin(a, "on")
    lean, degraded = sets.text_of(a)
    assert degraded == ["weights-4bit"] and lean != full
    assert sets.text_of(a) == (lean, degraded)
    sets.pin(a, "")
    assert sets.text_of(a) == (full, [])
    assert a.stop() == 0


def test_without_a_lean_set_on_the_device_the_reason_is_the_settings(hybrid, device):
    device()
    a = hybrid()
    assert a.status()["model"]["weight_sets"]["no_lean_reason"] == "there is no lean weight set: weights.lean is off"
    assert a.stop() == 0
