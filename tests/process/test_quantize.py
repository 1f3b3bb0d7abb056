"""`tandem quantize`: files that other tools would have written, whole or not there at all, and served."""
import fcntl
import json
import os
import resource
import signal
import subprocess
import time

import gguf
import numpy as np
import pytest
from conftest import BIN, GEMMA3, SMOLLM2
from gguf import GGMLQuantizationType as Type
from gguf import quants

TANDEM = os.path.join(BIN, "tandem")
GPL3 = "/usr/share/common-licenses/GPL-3"


def tandem(*args, code=0, **options):
    done = subprocess.run([TANDEM, *map(str, args)], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout, done.stderr


def quantize(model, to, out, *more, **options):
    return tandem("quantize", "--model", model, "--to", to, "--out", out, *more, **options)


def tensors(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def floats(t):
    return quants.dequantize(t.data, t.tensor_type).astype(np.float32)


@pytest.fixture(scope="module")
def q8(tmp_path_factory):
    out = tmp_path_factory.mktemp("q8") / "smollm2-q8_0.gguf"
    stdout, err = quantize(SMOLLM2, "q8_0", out, "--json", "--threads", 2)
    d = json.loads(stdout)
    assert d["type"] == "Q8_0" and d["bytes"] == os.path.getsize(out) and d["tensors_by_type"] == {"F32": 61, "Q8_0": 211}
    assert d["stand_ins"] == {} and 0.004 < d["relative_error"] < 0.008 and 8.4 < d["bits_per_weight"] < 8.6
    assert "100 %" in err and "mostly Q4_1" in err  # the source has lost already
    assert os.listdir(out.parent) == [out.name]
    return out


def test_tensors_have_the_bytes_that_the_gguf_package_makes(q8):
    source, made = tensors(SMOLLM2), tensors(q8)
    assert list(source) == list(made)
    for name, t in list(made.items())[::6]:
        s = source[name]
        assert list(t.shape) == list(s.shape)
        want = s.data if s.tensor_type == t.tensor_type else quants.quantize(floats(s), t.tensor_type)
        assert np.array_equal(np.asarray(want).view(np.uint8).ravel(), t.data.view(np.uint8).ravel()), name
    fields, old = gguf.GGUFReader(q8).fields, gguf.GGUFReader(SMOLLM2).fields
    assert set(fields) == set(old)
    for key in set(old) - {"general.file_type", "general.quantization_version"}:
        if not key.startswith("GGUF."):
            assert fields[key].contents() == old[key].contents(), key
    assert fields["general.file_type"].contents() == 7 and fields["general.quantization_version"].contents() == 2


def test_the_file_is_the_same_for_any_number_of_threads(q8, tmp_path):
    for threads in (1, 3):
        quantize(SMOLLM2, "q8_0", tmp_path / "again.gguf", "--threads", threads, "--force")
        assert subprocess.run(["cmp", str(q8), str(tmp_path / "again.gguf")]).returncode == 0
    for name in ("1", "2"):
        quantize(GEMMA3, "q6_k", tmp_path / name, "--threads", name)
    assert subprocess.run(["cmp", str(tmp_path / "1"), str(tmp_path / "2")]).returncode == 0


def test_q8_0_is_served_and_as_good_as_its_source(q8, start):
    a = start(model=q8)
    reply = a.client().chat.completions.create(model=a.model_name, max_tokens=8, temperature=0,
                                               messages=[{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in reply.choices[0].message.content
    a.stop()
    perplexity = [json.loads(tandem("eval", "--model", m, "--text", GPL3, "--tokens", 3000, "--json")[0])["perplexity"]
                  for m in (SMOLLM2, q8)]
    assert abs(perplexity[1] / perplexity[0] - 1) < 0.005, perplexity


def test_k_quants_of_rows_that_fit_and_a_stand_in_for_those_that_do_not(tmp_path):
    out = tmp_path / "g.gguf"
    stdout, _ = quantize(GEMMA3, "Q4_K", out)
    assert "91 tensors have rows of 640 as Q5_0: no multiple of 256" in stdout
    source, made = tensors(GEMMA3), tensors(out)
    kinds = {t.tensor_type for t in made.values()}
    assert kinds == {Type.F32, Type.Q4_K, Type.Q5_0}
    for name, t in list(made.items())[1::9]:  # the package is slow
        x, y = floats(source[name]), floats(t)
        error = float(np.sqrt(((x - y) ** 2).sum() / (x ** 2).sum()))
        # 4 bits of a bell curve with a scale and minimum a block of 32: plain rounding gives 0.08 of the rms.
        assert error < (0.08 if t.tensor_type == Type.Q4_K else 0.06), (name, error)
    assert json.loads(tandem("inspect", "--model", out, "--json")[0])["model"]["served"]


def test_what_is_refused_leaves_everything_as_it_was(tmp_path):
    out = tmp_path / "out.gguf"
    _, err = quantize(SMOLLM2, "q3_x", out, code=78)
    assert "q8_0, q4_0" in err and '"q3_x"' in err
    _, err = quantize(tmp_path / "none.gguf", "q8_0", out, code=1)
    assert "none.gguf" in err
    _, err = quantize(SMOLLM2, "q8_0", tmp_path, code=1)
    assert "no regular file" in err
    _, err = quantize(SMOLLM2, "q8_0", tmp_path / "none" / "out.gguf", code=1)
    assert "No such file" in err
    cut = tmp_path / "cut.gguf"
    with open(SMOLLM2, "rb") as f:
        cut.write_bytes(f.read(5_000_000))
    _, err = quantize(cut, "q8_0", out, code=78)
    assert "truncated" in err and "cut.gguf" in err
    hard, soft = tmp_path / "hard.gguf", tmp_path / "soft.gguf"
    os.link(cut, hard)
    os.symlink(cut, soft)
    for same in (cut, hard, soft):
        _, err = quantize(cut, "q8_0", same, "--force", code=1)
        assert "is the model itself" in err
    out.write_bytes(b"precious")
    _, err = quantize(SMOLLM2, "q8_0", out, code=1)
    assert "exists" in err and "--force" in err
    _, err = quantize(cut, "q8_0", out, "--force", code=78)
    assert out.read_bytes() == b"precious"
    assert sorted(os.listdir(tmp_path)) == ["cut.gguf", "hard.gguf", "out.gguf", "soft.gguf"]


def test_a_value_that_is_no_number_is_named(tmp_path):
    w = gguf.GGUFWriter(tmp_path / "nan.gguf", "llama")
    x = np.ones((4, 64), np.float32)
    x[2, 17] = np.nan
    w.add_tensor("blk.0.attn_q.weight", x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    _, err = quantize(tmp_path / "nan.gguf", "q4_0", tmp_path / "out", code=78)
    assert 'nan.gguf: tensor "blk.0.attn_q.weight", row 2: value 17 is no finite number' in err
    assert os.listdir(tmp_path) == ["nan.gguf"]


def test_a_full_disk_is_told_before_the_first_byte(tmp_path):
    command = (f"mount -t tmpfs -o size=70m tmpfs {tmp_path} && {TANDEM} quantize --model {SMOLLM2} --to q8_0 --out {tmp_path}/out; "
               f"echo code $?; ls -A {tmp_path}")
    done = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", command], capture_output=True, text=True)
    assert done.stdout == "code 1\n", done
    assert "the output needs 138.1 MiB, 70.0 MiB are free" in done.stderr and "quantizing [" not in done.stderr
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))  # noqa: E731
    _, err = quantize(SMOLLM2, "q8_0", tmp_path / "out", code=1, preexec_fn=limit)
    assert "ulimit -f" in err
    assert os.listdir(tmp_path) == []


def running(out, *more):
    p = subprocess.Popen([TANDEM, "quantize", "--model", GEMMA3, "--to", "q6_k", "--out", str(out), "--threads", "1", *more],
                         stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    end = time.time() + 20
    while not b"quantizing [" in p.stderr.readline():
        assert time.time() < end
    return p


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(tmp_path, number):
    p = running(tmp_path / "out")
    _, err = quantize(GEMMA3, "q6_k", tmp_path / "out", code=1)
    assert "another run" in err
    p.send_signal(number)
    assert p.wait(20) == 130
    assert os.listdir(tmp_path) == []


def test_a_killed_run_leaves_no_file_of_the_name_and_the_next_one_starts_again(tmp_path):
    out = tmp_path / "out"
    p = running(out)
    p.kill()
    p.wait()
    assert not out.exists()
    with open(f"{out}.partial", "rb") as left:  # its worker died with it: the lock comes free
        end = time.time() + 10
        while time.time() < end:
            try:
                fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
    quantize(GEMMA3, "q6_k", out)
    assert os.listdir(tmp_path) == ["out"]
    assert json.loads(tandem("inspect", "--model", out, "--json")[0])["model"]["served"]
