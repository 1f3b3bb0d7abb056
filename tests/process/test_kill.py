"""kill -9 of the worker at any moment: every stream pauses and goes on, byte for byte; nothing is lost or repeated."""
import collections
import json
import os
import random
import signal
import threading
import time

import pytest
from conftest import Appliance

SEED = int(os.environ.get("TANDEM_KILL_SEED", "20261129"))
KILLS = int(os.environ.get("TANDEM_KILLS", "40"))  # single kills at random moments; more by environment

# What the streams ask: greedy, seeded, a stop string that spans tokens, emoji (half characters), logprobs, two choices.
ASKS = [
    {"messages": [{"role": "user", "content": "List the letters of the alphabet."}], "temperature": 0, "max_tokens": 60},
    {"messages": [{"role": "user", "content": "Tell a story about a fox."}], "temperature": 0.9, "seed": 7, "max_tokens": 60},
    {"messages": [{"role": "user", "content": "Repeat: one two three four five six seven"}], "temperature": 0,
     "stop": ["four five", "four fi"], "max_tokens": 60},
    {"messages": [{"role": "user", "content": "Answer only with emoji: happy birthday 🎂🎉🥳"}], "temperature": 1.1, "seed": 3,
     "max_tokens": 50},
    {"messages": [{"role": "user", "content": "Name three rivers."}], "temperature": 0, "logprobs": True, "top_logprobs": 2,
     "max_tokens": 40},
    {"messages": [{"role": "user", "content": "Invent a name for a boat."}], "temperature": 1.0, "seed": 5, "n": 2, "max_tokens": 30},
    {"messages": [{"role": "user", "content": "Summarize: " + "The quick brown fox jumps over the lazy dog. " * 60}],
     "temperature": 0, "max_tokens": 30},
]


class Stream(threading.Thread):
    """One streamed request read to its end; keeps what came and when."""

    def __init__(self, a, ask):
        super().__init__(daemon=True)
        self.a, self.ask = a, ask
        self.texts, self.logprobs, self.finishes = collections.Counter(), [], {}
        self.texts = {}
        self.usage, self.error, self.times, self.degraded = None, None, [], None
        self.start()

    def run(self):
        try:
            stream = self.a.client().chat.completions.create(model=self.a.name, stream=True,
                                                             stream_options={"include_usage": True}, **self.ask)
            for chunk in stream:
                self.times.append(time.monotonic())
                if chunk.usage:
                    self.usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                for c in chunk.choices:
                    self.texts[c.index] = self.texts.get(c.index, "") + (c.delta.content or "")
                    if c.logprobs and c.logprobs.content:
                        self.logprobs += [(t.token, t.logprob) for t in c.logprobs.content]
                    if c.finish_reason:
                        assert c.index not in self.finishes
                        self.finishes[c.index] = c.finish_reason
                        self.degraded = chunk.model_extra["tandem"]["degraded"]
        except Exception as e:  # noqa: BLE001: whatever it is, the comparison shows it
            self.error = repr(e)

    def result(self, timeout=120):
        self.join(timeout)
        assert not self.is_alive(), "the stream hangs"
        return {"texts": self.texts, "finishes": self.finishes, "logprobs": self.logprobs, "usage": self.usage, "error": self.error}


@pytest.fixture(scope="module")
def a(tmp_path_factory):
    appliance = Appliance(tmp_path_factory.mktemp("kill"), settings=["batch.max_batch_size=8", "log.flush_ms=50"])
    appliance.name = appliance.model_name
    appliance.expected = [Stream(appliance, ask).result() for ask in ASKS]
    for r in appliance.expected:
        assert r["error"] is None and r["texts"] and set(r["finishes"].values()) <= {"stop", "length"}
    yield appliance
    assert appliance.stop() == 0


def phases(a):
    """Where the live requests are: counts of queued, prefill, decode, as /status.json says."""
    return collections.Counter(r["phase"] for r in a.status()["requests"])


def wait_worker(a, timeout=10):
    end = time.time() + timeout
    while not a.worker_pids():
        assert time.time() < end, "no worker came back"
        time.sleep(0.005)


def test_kill_at_random_moments(a):
    rng = random.Random(SEED)
    hit = collections.Counter()
    kills = 0
    while kills < KILLS:
        streams = [(i, Stream(a, ASKS[i])) for i in (rng.randrange(len(ASKS)) for _ in range(12))]
        started = time.monotonic()
        for _ in range(rng.randint(1, 3)):
            time.sleep(rng.uniform(0, 0.7))
            live = phases(a)
            if a.kill_worker():
                kills += 1
                hit.update(k for k in live if live[k])
                if any(s.times and s.is_alive() for _, s in streams):
                    hit["write"] += 1
        for i, s in streams:
            assert s.result() == a.expected[i], f"request {i} after kills {started=}"
    print("kills:", kills, "hit:", dict(hit))
    for phase in ("queued", "prefill", "decode", "write"):
        assert hit[phase] > 0, f"no kill hit the phase {phase}: {dict(hit)}"


def test_ten_kills_in_a_row_during_sixteen_streams(a):
    rng = random.Random(SEED + 1)
    longer = [dict(ask, max_tokens=200) for ask in ASKS[:2]]
    expected = [Stream(a, ask).result() for ask in longer]
    streams = [(i % 2, Stream(a, longer[i % 2])) for i in range(16)]
    time.sleep(0.5)
    gaps = []
    for _ in range(10):
        wait_worker(a)
        before = time.monotonic()
        a.kill_worker()
        killed = time.monotonic()
        while True:  # the next byte of any stream after the kill
            after = [t for _, s in streams for t in s.times[-1:] if t > killed + 0.005]
            if after or not any(s.is_alive() for _, s in streams):
                break
            assert time.monotonic() - killed < 10, "no stream flows after a kill"
            time.sleep(0.005)
        gaps.append(time.monotonic() - before)
        time.sleep(rng.uniform(0.05, 0.2))
    for i, s in streams:
        assert s.result() == expected[i]
    print("seconds from kill to the next byte:", [round(g, 2) for g in gaps])


def test_every_request_has_one_row_and_counters_agree(a):
    m = a.wait_idle()
    rows = a.rows()
    time.sleep(0.3)
    rows = a.rows()
    assert len({r["id"] for r in rows}) == len(rows)
    assert all(r["status"] in ("stop", "length") for r in rows)
    assert sum(v for k, v in m.items() if k.startswith("llm_requests_total")) == len(rows)
    assert sum(r["completion_tokens"] for r in rows) == m["llm_generation_tokens_total"]
    restarts = sum(v for k, v in m.items() if k.startswith("llm_worker_restarts_total"))
    assert restarts >= 10


def test_a_crashing_worker_does_not_condemn_the_unlucky(a):
    """SIGSEGV while streams make progress: nobody is quarantined."""
    streams = [(i, Stream(a, ASKS[i])) for i in (0, 1, 4)]
    for _ in range(4):
        time.sleep(0.4)
        wait_worker(a)
        a.kill_worker(signal.SIGSEGV)
    for i, s in streams:
        assert s.result() == a.expected[i]


def test_a_stopped_worker_is_noticed(start):
    a = start(settings=["workers.watchdog_ms=1000"])
    a.name = a.model_name
    expected = Stream(a, ASKS[0]).result()
    s = Stream(a, dict(ASKS[0]))
    while len(s.times) < 5:
        time.sleep(0.01)
    a.kill_worker(signal.SIGSTOP)
    time.sleep(0.7)
    assert s.result(30) == expected
    a.wait_ready()
    assert any('cause="watchdog"' in k and v >= 1 for k, v in a.metrics().items())


def test_drain_finishes_streams_and_ends_with_zero(start):
    a = start()
    a.name = a.model_name
    expected = Stream(a, ASKS[0]).result()
    s = Stream(a, ASKS[0])
    while len(s.times) < 3:
        time.sleep(0.01)
    a.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    status, body, headers = a.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "late"}]})
    assert status == 503 and int(headers["Retry-After"]) >= 1 and json.loads(body)["error"]["type"]
    assert s.result() == expected
    assert a.process.wait(20) == 0


def test_the_supervisor_survives_all_of_it(a):
    assert a.process.poll() is None and a.get("/health")[0] == 200
    assert "CHECK failed" not in a.log() and "AddressSanitizer" not in a.log()
