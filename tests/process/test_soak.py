"""A quarter of a minute of tests/soak: that its load and its comparisons work. Long runs: tests/soak/soak.py --minutes 60."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../soak"))
import soak  # noqa: E402


def test_a_short_soak(tmp_path):
    done = soak.run(minutes=0.3, kills_a_minute=12, clients=6, seed=5, json_file=str(tmp_path / "lines"))
    assert not done.faults, done.faults
    assert done.counts["replies"] > 10 and done.counts.get("kills", 0) > 0
    assert json.loads(open(tmp_path / "lines").read().strip().split("\n")[-1])["done"]


def test_a_wrong_expectation_is_reported(appliance):
    check = soak.Soak.__new__(soak.Soak)
    check.a, check.counts, check.faults, check.lock = appliance, {}, [], soak.threading.Lock()
    check.bodies, check.expected = soak.bodies(), ["planted"] * len(soak.bodies())
    check.plain(soak.random.Random(1), 0)
    check.stream(type("Draw", (), {"choice": staticmethod(lambda options: options[0])}), 1)
    assert len(check.faults) == 2 and all("another text" in f for f in check.faults)
