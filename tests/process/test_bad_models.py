"""Bad model files: a clear cause on /ready, the supervisor stays up, and serves once the file is replaced (C-38, C-39, C-53)."""
import json
import os
import shutil
import time

import pytest
from conftest import SMOLLM2, Appliance


def put(path, content):
    """Atomically, as an integrator's copy should be; the supervisor must notice."""
    with open(str(path) + ".new", "wb") as f:
        f.write(content)
    os.replace(str(path) + ".new", path)


def head(n):
    with open(SMOLLM2, "rb") as f:
        return f.read(n)


SIZE = os.path.getsize(SMOLLM2)
CASES = {
    "empty": (b"", "empty"),
    "html": (b"<!DOCTYPE html><html><body>404</body></html>" * 50, "not a GGUF"),
    "wrong_endian": (b"GGUF" + b"\0\0\0\x03" + head(64)[8:], "endian"),
    "cut_at_10_percent": (head(SIZE // 10), "truncated"),
    "cut_at_last_byte": (head(SIZE - 1), "truncated"),
    "unknown_architecture": (head(SIZE).replace(b"llama\x19", b"llama\x19", 1).replace(
        b"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llama",
        b"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00qqqqq", 1), "qqqqq"),
    "zero_dimension": (None, "dimension"),
    "missing_tensor": (head(SIZE).replace(b"blk.7.ffn_up.weight", b"blk.7.ffn_uq.weight", 1), "blk.7.ffn_up.weight"),
}


def zero_dimension():
    data = bytearray(head(SIZE))
    at = data.index(b"output_norm.weight") + len(b"output_norm.weight") + 4
    data[at:at + 8] = b"\0" * 8
    return bytes(data)


@pytest.mark.parametrize("name", list(CASES))
def test_bad_file_is_explained_and_replacing_it_heals(tmp_path, name):
    content, word = CASES[name]
    model = tmp_path / "model.gguf"
    put(model, content if content is not None else zero_dimension())
    a = Appliance(tmp_path / "state", model=model, wait_ready=False)
    try:
        end = time.time() + 20
        while True:
            status, body, _ = a.get("/ready")
            if status == 503 and word.lower() in body.lower():
                break
            assert status == 503 and time.time() < end, f"{word!r} is not in {body}\n{a.log()}"
            time.sleep(0.05)
        assert "model.gguf" in body
        assert a.get("/health")[0] == 200
        status, body, headers = a.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "timeout_s": 1})
        assert status == 503 and "Retry-After" in headers, body
        time.sleep(0.5)
        assert a.log().count("exit_code=78") <= 3, "the worker is restarted in a loop"
        shutil.copy(SMOLLM2, str(model) + ".new")
        os.replace(str(model) + ".new", model)
        a.wait_ready(30)
        assert a.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})[0] == 200
    finally:
        assert a.stop() == 0


def test_missing_file_and_directory(tmp_path):
    model = tmp_path / "late.gguf"
    a = Appliance(tmp_path / "state", model=model, wait_ready=False)
    try:
        end = time.time() + 10
        while str(model) not in a.get("/ready")[1]:
            assert time.time() < end, a.get("/ready")[1]
            time.sleep(0.05)
        assert a.get("/ready")[0] == 503
        os.symlink(SMOLLM2, model)
        a.wait_ready(30)
    finally:
        assert a.stop() == 0


def test_model_cut_in_place_while_serving(tmp_path):
    """Truncating the mapped file must never kill the daemon; restoring the file heals."""
    model = tmp_path / "model.gguf"
    shutil.copy(SMOLLM2, model)
    a = Appliance(tmp_path / "state", model=model)
    try:
        pid = a.process.pid
        os.truncate(model, 1000)
        a.kill_worker()
        end = time.time() + 20
        while a.get("/ready")[0] == 200 or "truncated" not in a.get("/ready")[1]:
            assert time.time() < end, a.get("/ready")[1]
            time.sleep(0.05)
        shutil.copy(SMOLLM2, str(model) + ".new")
        os.replace(str(model) + ".new", model)
        a.wait_ready(30)
        assert a.process.pid == pid
    finally:
        assert a.stop() == 0
