"""SIGHUP while a stream runs: keys, limits, deny list, ladder and log level are the new ones, the stream is not touched. What is
wrong in a file changes nothing and is told."""
import hashlib
import json
import signal
import threading
import time

import pytest

USERS = {"old": "key-of-before", "new": "key-of-after"}
LADDER = '[[rung]]\nname = "{}"\ncauses = ["queue"]\nenter = 0.7\nleave = 0.5\n'


def hash_of(key):
    return hashlib.sha256(key.encode()).hexdigest()


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Box:
    def __init__(self, start, folder):
        self.config, self.keys, self.words, self.ladder = (folder / name for name in ("tandem.toml", "keys", "words", "ladder.toml"))
        admin = folder / "admin"
        admin.write_text(hash_of("admin-key") + "\n")
        self.keys.write_text(f"old:{hash_of(USERS['old'])}\n")
        self.words.write_text("heron\n")
        self.ladder.write_text(LADDER.format("logprobs"))
        self.settings = (f'[auth]\nuser_keys_file = "{self.keys}"\nadmin_key_file = "{admin}"\n[filter]\ndeny_list_file = "{self.words}"\n'
                         f'[degrade]\nladder_file = "{self.ladder}"\n[limits]\nmax_choices = {{}}\n[log]\nlevel = "{{}}"\n')
        self.config.write_text(self.settings.format(4, "info"))
        self.a = start(config=self.config)

    def reload(self, said="reloaded"):
        before = self.a.log().count(said)
        self.a.process.send_signal(signal.SIGHUP)
        end = time.time() + 10
        while self.a.log().count(said) == before:
            assert time.time() < end, self.a.log()
            time.sleep(0.02)
        time.sleep(0.1)  # the loop takes it over

    def ask(self, key, prompt="Once", **more):
        status, text, _ = self.a.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **more}, bearer(key))
        return status if status == 200 else (status, json.loads(text)["error"]["code"])

    def stream(self, user, n_tokens):
        return self.a.client(api_key=USERS[user]).completions.create(model="SmolLM2-135M-Instruct.Q4_1", prompt="Once upon a time", max_tokens=n_tokens,
                                                                     stream=True, extra_body={"ignore_eos": True})

    def rungs(self):
        return [r["rung"] for r in json.loads(self.a.get("/status.json", bearer("admin-key"))[1])["ladder"]]


@pytest.fixture
def box(start, tmp_path):
    return Box(start, tmp_path)


def test_all_of_it_beside_a_stream(box):
    pieces, enough = [], threading.Event()  # pieces: of the text, each with the reason of an end

    def stream():
        with box.stream("old", 5000) as chunks:
            for chunk in chunks:
                pieces.append((chunk.choices[0].text, chunk.choices[0].finish_reason))
                if enough.is_set():
                    return

    client = threading.Thread(target=stream)
    client.start()
    while len(pieces) < 5:
        time.sleep(0.01)
    assert box.ask(USERS["old"], n=4) == 200 and box.ask(USERS["new"]) == (401, "invalid_api_key")
    assert box.ask(USERS["old"], "a heron") == (403, "request_filtered") and box.rungs() == ["logprobs"]
    assert "<7>" not in box.a.log()
    # Rotation: first both keys, then the new one alone. The new one may run one request at a time.
    box.keys.write_text(f"old:{hash_of(USERS['old'])}\nnew:{hash_of(USERS['new'])}:running=1\n")
    box.reload()
    assert box.ask(USERS["old"]) == box.ask(USERS["new"]) == 200
    box.keys.write_text(f"new:{hash_of(USERS['new'])}:running=1\n")
    box.words.write_text("osprey\n")
    box.ladder.write_text(LADDER.format("shed"))
    box.config.write_text(box.settings.format(2, "debug"))
    box.reload()
    assert box.ask(USERS["old"]) == (401, "invalid_api_key")
    assert box.ask(USERS["new"], n=4) == (400, "invalid_value") and box.ask(USERS["new"], n=2) == 200
    assert box.ask(USERS["new"], "a heron") == 200 and box.ask(USERS["new"], "an osprey") == (403, "request_filtered")
    assert box.rungs() == ["shed"] and "<7>" in box.a.log()
    n_before = len(pieces)
    while client.is_alive() and len(pieces) < n_before + 20:
        time.sleep(0.01)
    assert client.is_alive() and pieces[-1][1] is None, "the stream did not outlast it"
    enough.set()
    client.join()
    assert "wait for a restart" not in box.a.log()


def test_a_key_that_may_run_one_at_a_time(box):
    box.keys.write_text(f"new:{hash_of(USERS['new'])}:running=1\n")
    box.reload()
    stream = box.stream("new", 400)
    next(iter(stream))
    assert box.ask(USERS["new"]) == (429, "key_limit_exceeded")
    stream.close()
    end = time.time() + 10
    while box.ask(USERS["new"]) != 200:
        assert time.time() < end
        time.sleep(0.05)


@pytest.mark.parametrize("file, text, said", [
    ("config", "[limits]\nmax_choices = 0\n", "reload refused"), ("ladder", "[[rung]]\nname = 'sell'\n", "reload refused"),
    ("keys", "new:in-plain\n", "not reloaded"), ("words", "re:(\n", "not reloaded")])
def test_an_error_changes_nothing_and_is_told(box, file, text, said):
    path = getattr(box, file)
    path.write_text(text)
    box.reload(said)
    assert box.ask(USERS["old"], n=4) == 200 and box.ask(USERS["old"], "a heron") == (403, "request_filtered")
    assert box.rungs() == ["logprobs"]
    faults = json.loads(box.a.get("/status.json", bearer("admin-key"))[1])["faults"]
    assert any(str(path) in f["what"] for f in faults), faults
