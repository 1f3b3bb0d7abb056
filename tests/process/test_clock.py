"""The time of day jumps, as on a box without a battery when it reaches a time server: nothing but the times in the log follows."""
import json
import struct
import time

import pytest
from conftest import build_shim

DAY = 86400


@pytest.fixture(scope="module")
def clock_shim(tmp_path_factory):
    return build_shim("clock_shim", tmp_path_factory)


def stream_text(a, between=lambda n: None):
    """The text of a stream; between(n) is called behind its nth piece."""
    text, n = "", 0
    for chunk in a.client().chat.completions.create(model=a.model_name, stream=True, max_tokens=120, temperature=0, extra_body={"ignore_eos": True},
                                                    messages=[{"role": "user", "content": "Tell a story about a lighthouse."}]):
        if chunk.choices and chunk.choices[0].delta.content:
            text += chunk.choices[0].delta.content
            between(n := n + 1)
    return text


def test_a_clock_that_jumps_disturbs_nothing(start, clock_shim, tmp_path):
    offset = tmp_path / "offset"

    def jump(seconds):
        with open(offset, "r+b" if offset.exists() else "wb") as f:
            f.write(struct.pack("q", seconds))

    def shown():
        return json.loads(a.get("/status.json")[1])["time"]

    jump(0)
    a = start(settings=["log.flush_ms=50", "limits.timeout_ms=60000"], prefix=["env", f"LD_PRELOAD={clock_shim}", f"CLOCK_OFFSET={offset}"])
    today, want = shown()[:10], stream_text(a)
    jumps = {20: -50 * 365 * DAY, 50: 5 * 365 * DAY, 80: -2 * DAY}
    assert stream_text(a, lambda n: n in jumps and jump(jumps[n])) == want
    assert shown()[:10] == time.strftime("%Y-%m-%d", time.gmtime(time.time() - 2 * DAY)) != today  # the fault is there
    jump(0)
    assert stream_text(a) == want

    rows = a.wait_for_rows(3)
    assert len(rows) == 3
    for row in rows:
        assert 0 <= row["queue_ms"] < 20_000 and 0 < row["total_ms"] < 60_000 and not row["degradation"], row
    m = a.metrics()
    assert not any(v for k, v in m.items() if k.startswith(("llm_degradation_active", "llm_worker_restarts_total", "llm_request_log_dropped_total")))
    assert all(0 <= v < 1e5 for k, v in m.items() if "_seconds_sum" in k)
    assert a.get("/ready")[0] == 200
