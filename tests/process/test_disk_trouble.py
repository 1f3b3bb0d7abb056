"""The disk of the state folder full, or read-only from the start (one in use cannot be made so; EIO: test_power_cut.py), under a
real appliance: serving goes on, the cause is shown where people look, and rows are kept again as soon as they can be."""
import json
import os
import subprocess
import time

import pytest
from conftest import BIN, Appliance

SMALL = 'mount -t tmpfs -o size=20m tmpfs "$0" && {} && exec "$@"'


class Mounted(Appliance):
    """Its state folder is a small file system of its own, seen by it alone."""

    def __init__(self, state, first="true"):
        os.makedirs(state)
        super().__init__(state, prefix=["unshare", "--mount", "--propagation", "private", "sh", "-c", SMALL.format(first), str(state)],
                         settings=["log.flush_ms=50"])

    def inside(self, name):
        return f"/proc/{self.process.pid}/root{self.state}/{name}"

    def serves(self):
        answer = self.client().completions.create(model=self.model_name, prompt="Once", max_tokens=4)
        return answer.usage.completion_tokens == 4 and self.get("/ready")[0] == 200

    def told(self, *words):
        """In /status.json, by `tandem status` and in the log."""
        end = time.time() + 20
        while time.time() < end:
            shown = (json.dumps(self.status()), subprocess.run([os.path.join(BIN, "tandem"), "status", "--url", self.url], capture_output=True, text=True).stdout,
                     self.log())
            if all(any(word in text for word in words) for text in shown):
                return True
            assert self.serves()
        raise AssertionError([text[-1500:] for text in shown])

    def n_rows(self):
        status, body, _ = self.get("/v1/requests?limit=10000")
        return len(json.loads(body)["data"]) if status == 200 else 0

    def keeps_rows_again(self):
        before, end = self.n_rows(), time.time() + 30
        while self.n_rows() <= before:
            assert time.time() < end, self.log()[-2000:]
            assert self.serves()
            time.sleep(0.3)
        return True


@pytest.fixture
def mounted(tmp_path):
    made = []
    yield lambda *first: made.append(Mounted(tmp_path / "state", *first)) or made[0]
    assert made[0].stop() == 0


def test_full_then_room_again(mounted):
    a = mounted()
    assert a.serves() and a.wait_for_rows(1)
    assert "repacked weights are not stored" in a.log() and "space" in a.log()
    with pytest.raises(OSError), open(a.inside("filler"), "wb", buffering=0) as f:
        while True:
            f.write(b"x" * 65536)
    assert all(a.serves() for _ in range(5))
    assert a.told("full", "No space left")
    assert a.metrics()["llm_request_log_dropped_total"] > 0
    os.unlink(a.inside("filler"))
    assert a.keeps_rows_again()


def test_read_only_then_writable_again(mounted):
    a = mounted('mkdir "$0/cache" && mount -o remount,ro "$0"')
    assert all(a.serves() for _ in range(5))
    assert a.told("read-only", "readonly", "Read-only")
    subprocess.run(["nsenter", "-t", str(a.process.pid), "--mount", "mount", "-o", "remount,rw", a.state], check=True)
    assert a.keeps_rows_again()
