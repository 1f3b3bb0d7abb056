"""The request log when the power goes, and when the disk fails. A recorder under a real appliance notes each write and sync
of the database; the power is then cut at a thousand points: what was synced is there, of what was not any part may be
lost or torn at a sector."""
import os
import random
import sqlite3
import time

import pytest
from conftest import Appliance
from recorded_disk import Disk, read_record, watching

POINTS = int(os.environ.get("TANDEM_POWER_CUTS", "1000"))


class Watched(Appliance):
    def __init__(self, folder, shim, settings):
        environment = {**watching(shim, folder / "state/requests.db", folder / "record"), "DISK_FAULT": str(folder / "broken")}
        os.environ.update(environment)
        try:
            super().__init__(folder / "state", settings=settings)
        finally:
            for name in environment:
                os.environ.pop(name)


def refused(appliance, n):
    for _ in range(n):
        assert appliance.post("/v1/completions", {"prompt": "a", "n": 0})[0] == 400


def rows_of(tree, folder):
    """Rows of the database made of these files; None: there is none yet. Raises if it is damaged."""
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    for path, content in tree.items():
        with open(os.path.join(folder, os.path.basename(path)), "wb") as f:
            f.write(content)
    db = sqlite3.connect(os.path.join(folder, "requests.db"))
    try:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'requests'").fetchone():
            return None
        return db.execute("SELECT count(*), coalesce(max(rowid), 0) FROM requests").fetchone()
    finally:
        db.close()


def cut(record, folder, points, seed):
    """Checks every point; returns how many had unsynced bytes."""
    draw, disk, promised, n_open = random.Random(seed), Disk(), 0, 0
    chosen = sorted(draw.sample(range(len(record)), min(points, len(record))))
    at = 0
    for point in chosen:
        while at < point:
            op = record[at]
            at += 1
            disk.do(op)
            if op[0] == "s" and disk.is_of(op, "-wal"):
                rows = rows_of(disk.tree(), folder)
                promised = max(promised, rows[1]) if rows else promised
        n_open += disk.has_open_ends()
        rows = rows_of(disk.after_a_cut(draw), folder)
        assert promised == 0 or (rows and rows[1] >= promised), f"point {point}: row {promised} was written through, the last is {rows}"
    return n_open


@pytest.fixture(scope="module")
def record(shim, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    a = Watched(folder, shim, ["log.flush_ms=10", "log.max_bytes=1048576"])
    for _ in range(60):
        refused(a, 10)
        time.sleep(0.012)
    assert a.stop() == 0
    return read_record(folder / "record")


def test_power_cut_at_a_thousand_points(record, tmp_path):
    assert len(record) > 200 and {"w", "s"} <= {op[0] for op in record}
    begin = time.time()
    n_open = cut(record, str(tmp_path), POINTS, seed=1)
    assert n_open > 20, "hardly any point had something to lose"
    print(f"{min(POINTS, len(record))} of {len(record)} points, {n_open} with unsynced bytes, {time.time() - begin:.1f} s")


def test_a_disk_that_lies_is_seen(record, tmp_path):
    """Planted: if syncs did nothing, rows or the file would be lost; the same check must say so."""
    with pytest.raises((AssertionError, sqlite3.DatabaseError)):
        disk, promised = Disk(), 0
        for op in record:
            if op[0] not in "sd":
                disk.do(op)
        rows = rows_of(disk.after_a_cut(random.Random(1)), str(tmp_path))
        assert rows and rows[0] >= 100


def test_what_a_cut_leaves_is_served_on(record, tmp_path, start):
    disk = Disk()
    for op in record[:len(record) // 2]:
        disk.do(op)
    state = tmp_path / "state0"
    state.mkdir()
    for path, content in disk.after_a_cut(random.Random(2)).items():
        (state / os.path.basename(path)).write_bytes(content)
    a = start()
    before = len(a.rows())
    assert before > 0
    refused(a, 3)
    assert len(a.wait_for_rows(before + 3)) == before + 3 and "damaged" not in a.log()


def test_io_errors_cost_rows_not_service(shim, tmp_path):
    a = Watched(tmp_path, shim, ["log.flush_ms=20"])
    try:
        refused(a, 3)
        a.wait_for_rows(3)
        (tmp_path / "broken").touch()
        for _ in range(5):
            answer = a.client().completions.create(model=a.model_name, prompt="Once", max_tokens=4)
            assert answer.usage.completion_tokens == 4
        end = time.time() + 10
        while "request log" not in a.log() and time.time() < end:
            time.sleep(0.05)
        assert a.get("/ready")[0] == 200
        said = a.log()
        assert "I/O error" in said or "disk I/O" in said, said[-2000:]
        before = a.wait_for_rows(0)
        (tmp_path / "broken").unlink()
        end = time.time() + 30
        while len(a.rows()) <= len(before):  # tried again every few seconds
            assert time.time() < end, a.log()[-2000:]
            refused(a, 1)
            time.sleep(0.5)
        assert "request log writes again" in a.log() and a.metrics()["llm_request_log_dropped_total"] > 0
    finally:
        assert a.stop() == 0
