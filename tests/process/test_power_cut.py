"""The request log when the power goes, and when the disk fails. A recorder under a real appliance notes each write and sync
of the database; the power is then cut at a thousand points: what was synced is there, of what was not any part may be
lost or torn at a sector."""
import os
import random
import sqlite3
import struct
import subprocess
import time

import pytest
from conftest import BIN, Appliance

HERE = os.path.dirname(os.path.abspath(__file__))
SECTOR = 512
POINTS = int(os.environ.get("TANDEM_POWER_CUTS", "1000"))


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("shim") / "disk_shim.so")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", out, os.path.join(HERE, "disk_shim.c"), "-ldl"], check=True)
    return out


class Watched(Appliance):
    def __init__(self, folder, shim, settings):
        os.environ.update(LD_PRELOAD=shim, DISK_PREFIX=str(folder / "state/requests.db"), DISK_RECORD=str(folder / "record"),
                          DISK_FAULT=str(folder / "broken"))
        try:
            super().__init__(folder / "state", settings=settings)
        finally:
            for name in ("LD_PRELOAD", "DISK_PREFIX", "DISK_RECORD", "DISK_FAULT"):
                os.environ.pop(name)


def refused(appliance, n):
    for _ in range(n):
        assert appliance.post("/v1/completions", {"prompt": "a", "n": 0})[0] == 400


def read_record(path):
    data, at, out = open(path, "rb").read(), 0, []
    while at < len(data):
        kind, _, path_bytes, data_bytes, offset = struct.unpack_from("<BBHIq", data, at)
        at += 16
        name = os.path.basename(data[at:at + path_bytes].decode())
        at += path_bytes
        out.append((chr(kind), name, offset, data[at:at + data_bytes]))
        at += data_bytes
    return out


def put(content, offset, data):
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset:offset + len(data)] = data


def apply(files, op):
    kind, name, offset, data = op
    if kind == "w":
        put(files.setdefault(name, bytearray()), offset, data)
    elif kind == "t":
        content = files.setdefault(name, bytearray())
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    elif kind == "u":
        files.pop(name, None)
    elif kind == "r":
        files[os.path.basename(data.decode())] = files.pop(name, bytearray())


class Disk:
    """What is surely there (`safe`), and what was done since, in order, per file."""

    def __init__(self):
        self.safe, self.since = {}, []

    def do(self, op):
        if op[0] not in "sd":
            self.since.append(op)
            return
        # A file's sync makes its bytes last; the folder's sync, that names are gone or changed.
        lasts = (lambda o: o[0] in "ur") if op[0] == "d" else (lambda o: o[0] in "wtu" and o[1] == op[1])
        for o in self.since:
            if lasts(o):
                apply(self.safe, o)
        self.since = [o for o in self.since if not lasts(o)]

    def after_a_cut(self, draw):
        files = {name: bytearray(content) for name, content in self.safe.items()}
        for kind, name, offset, data in self.since:
            if kind != "w":
                if draw.random() < 0.5:  # an unlink or truncation that was under way
                    apply(files, (kind, name, offset, data))
                continue
            for sector in range(0, len(data), SECTOR):
                if draw.random() < 0.5:
                    put(files.setdefault(name, bytearray()), offset + sector, data[sector:sector + SECTOR])
        return files


def rows_of(files, folder):
    """Rows of the database made of these files; None: there is none yet. Raises if it is damaged."""
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as f:
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
            if op[0] == "s" and op[1].endswith("-wal"):
                everything = {name: bytearray(content) for name, content in disk.safe.items()}
                for o in disk.since:
                    apply(everything, o)
                rows = rows_of(everything, folder)
                promised = max(promised, rows[1]) if rows else promised
        n_open += bool(disk.since)
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
    for name, content in disk.after_a_cut(random.Random(2)).items():
        (state / name).write_bytes(content)
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
