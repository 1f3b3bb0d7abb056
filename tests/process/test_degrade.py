"""The ladder on a real model: marks on plain and streamed replies, `tandem degrade`, bad ladders."""
import json
import os
import subprocess
import threading
import time

import pytest
from conftest import BIN, SMOLLM2, sse_events

TANDEM = os.path.join(BIN, "tandem")


def degrade(appliance, *args, code=0):
    done = subprocess.run([TANDEM, "degrade", *args, "--url", appliance.url], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def pinned(appliance):
    yield lambda rung: degrade(appliance, "set", rung)
    for rung in ["logprobs", "batch", "tokens", "shed"]:
        degrade(appliance, "clear", rung)


def ask(appliance, **more):
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12, "temperature": 0, **more}
    return appliance.post("/v1/chat/completions", body)


def test_logprobs_come_back_null_and_the_reply_says_so(appliance, pinned):
    status, text, headers = ask(appliance, logprobs=True, top_logprobs=2)
    before = json.loads(text)
    assert status == 200 and headers["X-Tandem-Degraded"] is None and len(before["choices"][0]["logprobs"]["content"]) == 12
    assert "pinned on" in pinned("logprobs")
    status, text, headers = ask(appliance, logprobs=True, top_logprobs=2)
    after = json.loads(text)
    assert headers["X-Tandem-Degraded"] == "logprobs" and after["choices"][0]["logprobs"] is None
    assert after["tandem"]["degraded"] == ["logprobs"]
    assert after["choices"][0]["message"] == before["choices"][0]["message"] and after["usage"]["total_tokens"] == before["usage"]["total_tokens"]
    _, text, headers = ask(appliance)  # asked for nothing: untouched
    assert headers["X-Tandem-Degraded"] is None and json.loads(text)["tandem"]["degraded"] == []


def test_a_stream_says_so_in_the_finish_chunk_of_each_choice_and_nowhere_else(appliance, pinned):
    pinned("logprobs")
    _, text, _ = ask(appliance, logprobs=True, stream=True, n=2, stream_options={"include_usage": True})
    events = list(sse_events(text))
    assert events.pop() == "[DONE]"
    usage = events.pop()
    assert usage["choices"] == [] and "tandem" not in usage
    ends = [e for e in events if e["choices"][0]["finish_reason"]]
    assert sorted(e["choices"][0]["index"] for e in ends) == [0, 1]
    for e in events:
        assert e["choices"][0].get("logprobs") is None
        assert ("tandem" in e) == (e in ends)
    assert all(e["tandem"]["degraded"] == ["logprobs"] for e in ends)


def test_tokens_are_capped_for_low_priority_only(appliance, pinned):
    pinned("tokens")
    _, text, headers = ask(appliance, max_tokens=200, priority="low", ignore_eos=True)
    reply = json.loads(text)
    assert reply["usage"]["completion_tokens"] == 128 and headers["X-Tandem-Degraded"] == "tokens"
    assert reply["tandem"]["reason"] == "degraded" and reply["choices"][0]["finish_reason"] == "length"
    _, text, headers = ask(appliance, max_tokens=200, ignore_eos=True)
    assert json.loads(text)["usage"]["completion_tokens"] == 200 and headers["X-Tandem-Degraded"] is None
    row = appliance.wait_for_rows(1)
    assert {r["degradation"] for r in row} <= {"", "logprobs", "tokens"} and any(r["degradation"] == "tokens" for r in row)


def test_shed_refuses_low_priority_with_a_time_to_come_back(appliance, pinned):
    pinned("shed")
    status, text, headers = ask(appliance, priority="low")
    assert status == 429 and int(headers["Retry-After"]) >= 1 and json.loads(text)["error"]["code"] == "overloaded"
    assert ask(appliance, priority="high")[0] == 200
    assert "active: shed (pinned)" in subprocess.run([TANDEM, "status", "--url", appliance.url], capture_output=True, text=True).stdout


def test_what_cannot_be_pinned_says_why(appliance):
    assert "no lean weight set" in degrade(appliance, "set", "weights-4bit", code=1)
    assert "must be one of" in degrade(appliance, "set", "nonsense", code=1)
    assert degrade(appliance, "set", code=2) and degrade(appliance, code=2)


@pytest.mark.parametrize("ladder, word", [
    ('[[rung]]\nname = "shed"\ncauses = ["kv"]\nenter = 0.5\nleave = 0.6\n', "leave must be < enter"),
    ('[[rung]]\nname = "sell"\n', "must be one of logprobs"), ("[[rung\n", ":1: ")])
def test_a_bad_ladder_is_refused_at_start(tmp_path, ladder, word):
    path = tmp_path / "ladder.toml"
    path.write_text(ladder)
    done = subprocess.run([os.path.join(BIN, "tandemd"), "--set", f"degrade.ladder_file={path}", "--set", f"model.path={SMOLLM2}",
                           "--set", f"paths.state_dir={tmp_path}", "--set", f"paths.cache_dir={tmp_path}",
                           "--set", "server.listen=127.0.0.1:0"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 78 and word in done.stderr and str(path) in done.stderr


def test_a_pool_in_use_shrinks_the_batch_and_the_replies_that_waited_say_so(start, tmp_path):
    """8 places, pages for about 1,100 tokens; 12 answers of 250 tokens each fill them, as answers were short before: else nobody
    would be admitted whose answer finds no room."""
    path = tmp_path / "ladder.toml"
    path.write_text('[load]\nsmoothing_s = 0.3\n[load.kv]\nzero = 0.5\none = 1.0\n'
                    '[[rung]]\nname = "batch"\ncauses = ["kv"]\nenter = 0.6\nleave = 0.5\ndwell_s = 1\n')
    a = start(settings=["batch.max_batch_size=8", "cache.kv_pool_bytes=26000000", f"degrade.ladder_file={path}",
                        "log.flush_ms=50", "cache.prefix=false"])
    active = 'llm_degradation_active{rung="batch"}'
    assert a.metrics()[active] == 0
    for i in range(50):
        assert ask(a, max_tokens=2, ignore_eos=True, seed=i)[0] == 200
    replies, seen = [], []

    def one(i):
        replies.append(ask(a, max_tokens=250, ignore_eos=True, seed=i))

    clients = [threading.Thread(target=one, args=(i,)) for i in range(12)]
    for c in clients:
        c.start()
    while any(c.is_alive() for c in clients):
        m = a.metrics()
        seen.append((m[active], m['llm_load_ratio{cause="kv"}'], m["llm_requests_running"]))
        time.sleep(0.1)
    assert [status for status, _, _ in replies] == [200] * 12
    assert all(json.loads(text)["usage"]["completion_tokens"] == 250 for _, text, _ in replies)
    assert any(on == 1 for on, _, _ in seen), seen
    assert all(kv > 0.5 for (was, _, _), (on, kv, _) in zip(seen, seen[1:]) if on > was)  # entered for the pool's use
    touched = [r for r in replies if r[2]["X-Tandem-Degraded"] == "batch"]
    assert touched and all(json.loads(text)["tandem"]["degraded"] == ["batch"] for _, text, _ in touched)
    assert all(json.loads(text)["tandem"]["degraded"] == [] and headers["X-Tandem-Degraded"] is None
               for _, text, headers in replies if (_, text, headers) not in touched)
    end = time.time() + 30
    while a.metrics()[active] == 1:
        assert time.time() < end
        time.sleep(0.2)
    assert a.metrics()['llm_requests_degraded_total{rung="batch"}'] == len(touched)
    assert sorted(r["degradation"] for r in a.wait_for_rows(62)) == [""] * (62 - len(touched)) + ["batch"] * len(touched)
    assert ask(a)[2]["X-Tandem-Degraded"] is None


def test_the_batch_rung_can_be_pinned_and_is_shown(appliance, pinned):
    assert "pinned on" in pinned("batch")
    assert "active: batch (pinned)" in subprocess.run([TANDEM, "status", "--url", appliance.url], capture_output=True, text=True).stdout
    assert appliance.metrics()['llm_degradation_active{rung="batch"}'] == 1
    assert ask(appliance)[2]["X-Tandem-Degraded"] is None  # it had a place at once
    degrade(appliance, "clear", "batch")
    end = time.time() + 20
    while appliance.metrics()['llm_degradation_active{rung="batch"}'] == 1:
        assert time.time() < end
        time.sleep(0.2)
