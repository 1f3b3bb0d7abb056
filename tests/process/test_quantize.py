"""`tandem quantize`: files that other tools would have written, whole or not there at all, made once, gone on with, and served."""
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import gguf
import numpy as np
import psutil
import pytest
from conftest import BIN, GEMMA3, SMOLLM2
from gguf import GGMLQuantizationType as Type
from gguf import quants

TANDEM = os.path.join(BIN, "tandem")
GPL3 = "/usr/share/common-licenses/GPL-3"
FAMILIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/families")
LLAMA = os.path.join(FAMILIES, "llama.gguf")


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
    assert d["cached"] is False and d["resumed_bytes"] == 0
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
    assert set(fields) == set(old) | {"tandem.quantize.source_sha256", "tandem.quantize.version"}
    assert fields["tandem.quantize.source_sha256"].contents() == hashlib.sha256(open(SMOLLM2, "rb").read()).hexdigest()
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
    assert f"--out {out} exists and is not what this command would make" in err and "--force" in err and "reading the model [" in err
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


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """What a calibration reads, and what it has never seen: two parts of a licence."""
    folder = tmp_path_factory.mktemp("texts")
    text = open(GPL3, "rb").read()
    read, unseen = folder / "read.txt", folder / "unseen.txt"
    read.write_bytes(text[:17000])
    unseen.write_bytes(text[17000:])
    return read, unseen


def test_a_calibration_lowers_the_perplexity_of_a_text_it_has_not_seen(texts, tmp_path):
    read, unseen = texts
    perplexity = {}
    for name, more in (("plain", ()), ("calibrated", ("--calibration", read))):
        out = tmp_path / f"{name}.gguf"
        if more:  # its calibration outlives a kill
            p = start_run(SMOLLM2, "q4_0", out, *more, threads=0)
            wait_until(p, lambda: newest_record(f"{out}.partial", os.path.getsize(tmp_path / "plain.gguf")))
            p.kill()
            p.wait()
        said_so, err = quantize(SMOLLM2, "q4_0", out, "--json", *more)
        assert not more or ("with its calibration" in err and "calibrating [" not in err)
        d = json.loads(said_so)
        perplexity[name] = json.loads(tandem("eval", "--model", out, "--text", unseen, "--tokens", 3000, "--json")[0])["perplexity"]
        assert ("calibration" in d) == bool(more)
    c = d["calibration"]
    assert c["text"] == "read.txt" and c["sha256"] == hashlib.sha256(read.read_bytes()).hexdigest()
    assert 3000 < c["tokens"] <= 4096 and c["windows"] == -(-c["tokens"] // 512)
    assert c["weighted_tensors"] == 211 and c["unweighted_tensors"] == 0
    assert 0.5 * c["weighted_error_without"] < c["weighted_error"] < 0.97 * c["weighted_error_without"]
    print(perplexity, c)
    assert perplexity["calibrated"] < perplexity["plain"], perplexity
    plain, calibrated = (tensors(tmp_path / f"{name}.gguf") for name in perplexity)
    assert {n: (t.tensor_type, list(t.shape)) for n, t in plain.items()} == {n: (t.tensor_type, list(t.shape)) for n, t in calibrated.items()}
    fields, old = gguf.GGUFReader(tmp_path / "calibrated.gguf").fields, gguf.GGUFReader(tmp_path / "plain.gguf").fields
    said = {key: fields[key].contents() for key in set(fields) - set(old)}
    assert said == {"quantize.imatrix.dataset": "read.txt", "quantize.imatrix.entries_count": 211,
                    "quantize.imatrix.chunks_count": c["windows"], "tandem.calibration.tokens": c["tokens"],
                    "tandem.calibration.sha256": c["sha256"]}


def test_each_matrix_is_weighted_by_what_it_is_multiplied_with(texts, tmp_path):
    """A model in which only a few columns of each matrix ever meet anything, others in each kind: one or two in a block, so that
    scale and minimum can render those exactly, which nobody would who weighs other columns."""
    model = tmp_path / "model.gguf"
    shutil.copy(os.path.join(FAMILIES, "llama.gguf"), model)
    live = {"attn_norm": [3, 40], "ffn_norm": [17, 50], "output_norm": [9, 60], "attn_v": [5, 25], "ffn_gate": [1, 34, 70]}
    for t in gguf.GGUFReader(model, "r+").tensors:
        for part, kept in live.items():
            if part in t.name:
                t.data[np.setdiff1d(np.arange(len(t.data)), kept)] = 0  # values of a norm, whole rows of a matrix
    # Heads of 16; the first two read row 5 of the values, the others row 25.
    columns = {"attn_q": [3, 40], "attn_k": [3, 40], "attn_v": [3, 40], "attn_output": [5, 21, 41, 57], "ffn_gate": [17, 50],
               "ffn_up": [17, 50], "ffn_down": [1, 34, 70], "token_embd": [9, 60]}
    quantize(model, "q4_1", tmp_path / "out.gguf", "--calibration", texts[0])
    source, made = tensors(model), tensors(tmp_path / "out.gguf")
    for name, t in made.items():
        part = next((p for p in columns if p in name), None)
        if part is None:
            continue
        x, y = floats(source[name]), floats(t)
        most = np.abs(x).reshape(len(x), -1, 32).max(axis=2).repeat(32, axis=1)
        exact = (np.abs(x - y) <= 6 * most / 2048)[most[:, 0] > 0]  # scale and minimum are rounded to halves
        is_live = np.isin(np.arange(x.shape[1]), columns[part])
        assert exact[:, is_live].mean() > 0.9, name
        assert exact[:, ~is_live].mean() < 0.5, name


def test_a_calibrated_file_is_the_same_for_any_number_of_threads_and_tells_what_was_not_weighted(texts, tmp_path):
    for threads in (1, 3):
        out, _ = quantize(os.path.join(FAMILIES, "phi3.gguf"), "q4_0", tmp_path / f"{threads}", "--threads", threads, "--calibration",
                          texts[0], "--calibration-tokens", 1000)
        # Fused matrices once each; the embedding is looked up, the output is another tensor.
        assert "calibrated with 1000 tokens of read.txt: 9 tensors" in out and "1 tensors as without a calibration" in out
    assert (tmp_path / "1").read_bytes() == (tmp_path / "3").read_bytes()
    plain = tmp_path / "plain"
    quantize(os.path.join(FAMILIES, "phi3.gguf"), "q4_0", plain)
    a, b = tensors(plain), tensors(tmp_path / "1")
    assert [n for n in a if a[n].tensor_type == Type.Q4_0 and np.array_equal(a[n].data, b[n].data)] == ["token_embd.weight"]
    # The text past the tokens asked for changes nothing but what is said of it.
    longer = tmp_path / "read.txt"
    longer.write_bytes(texts[0].read_bytes() + b"more")
    quantize(os.path.join(FAMILIES, "phi3.gguf"), "q4_0", tmp_path / "longer", "--calibration", longer, "--calibration-tokens", 1000)
    assert all(np.array_equal(t.data, b[n].data) for n, t in tensors(tmp_path / "longer").items())


def test_a_calibration_that_cannot_be_is_refused(texts, tmp_path):
    llama, out = os.path.join(FAMILIES, "llama.gguf"), tmp_path / "out"
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "short.txt").write_text("Short. " * 9)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 1000)
    w = gguf.GGUFWriter(tmp_path / "moe.gguf", "mixtral9")
    w.add_tensor("blk.0.ffn_up_exps.weight", np.ones((4, 64, 64), np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    quantize(llama, "q4_0", tmp_path / "q4_0.gguf")
    before = sorted(os.listdir(tmp_path))
    for model, to, text, code, parts in (
            (llama, "q4_0", tmp_path / "none.txt", 1, ("--calibration", "none.txt", "No such file")),
            (llama, "q4_0", tmp_path, 1, ("--calibration", "is a directory")),
            (llama, "q4_0", "", 1, ("--calibration", "cannot open")),
            (llama, "q4_0", tmp_path / "empty.txt", 78, ("--calibration empty.txt: has 0 tokens; allowed: 256 or more",)),
            (llama, "q4_0", tmp_path / "short.txt", 78, ("--calibration short.txt: has ", "allowed: 256 or more")),
            (llama, "q4_0", tmp_path / "latin.txt", 78, ("--calibration latin.txt: is not valid UTF-8 at byte 3", "iconv")),
            (llama, "q8_0", texts[0], 78, ("--calibration: q8_0", "allowed with --to q4_0, q4_1", "leave --calibration out")),
            (tmp_path / "moe.gguf", "q4_0", texts[0], 78, ("--calibration runs the text through the model", "mixtral9", "leave --calibration")),
            (tmp_path / "q4_0.gguf", "q4_0", texts[0], 78, ("q4_0.gguf: a calibration would change nothing",))):
        _, err = quantize(model, to, out, "--calibration", text, code=code)
        assert all(part in err for part in parts), (parts, err)
    quantize(llama, "q4_0", out, "--calibration-tokens", 500, code=2)  # of no text
    _, err = quantize(llama, "q4_0", out, "--calibration", texts[0], "--calibration-tokens", 255, code=2)
    assert "--calibration-tokens" in err and "256" in err and "1000000" in err
    assert sorted(os.listdir(tmp_path)) == before


def state_of(path):
    s = os.stat(path)
    return s.st_ino, s.st_mtime_ns, s.st_size


def test_what_is_made_already_is_left_as_it_is(q8, texts, tmp_path):
    before = state_of(q8)
    out, err = quantize(SMOLLM2, "q8_0", q8)
    assert out == f"{q8} is already made of this model with these options; nothing to do\n"
    assert "reading the model [" in err and "quantizing [" not in err and "note:" not in err
    d = json.loads(quantize(SMOLLM2, "Q8_0", q8, "--json", "--threads", 1)[0])
    assert d["cached"] is True and d["bytes"] == before[2] and d["type"] == "Q8_0" and d["relative_error"] is None
    _, err = quantize(SMOLLM2, "q4_0", q8, code=1)
    assert "is not what this command would make" in err
    assert state_of(q8) == before and os.listdir(q8.parent) == [q8.name]
    # With a calibration: neither is it run again, nor does another one count as the same.
    out, calibrated = tmp_path / "out", ("--calibration", texts[0], "--calibration-tokens", 300)
    whole = json.loads(quantize(LLAMA, "q4_0", out, *calibrated, "--json")[0])
    before = state_of(out)
    said, err = quantize(LLAMA, "q4_0", out, *calibrated, "--json")
    d = json.loads(said)
    assert "calibrating [" not in err and d["cached"] is True and d["calibration"]["weighted_error"] is None
    for key in ("text", "sha256", "tokens", "windows", "weighted_tensors", "unweighted_tensors"):
        assert d["calibration"][key] == whole["calibration"][key]
    for more in ((), (*calibrated[:3], 301), ("--calibration", texts[1], *calibrated[2:])):
        quantize(LLAMA, "q4_0", out, *more, code=1)
    other = tmp_path / "other.gguf"
    shutil.copy(LLAMA, other)
    with open(other, "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)[0]
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last ^ 1]))  # of a weight
    quantize(other, "q4_0", out, *calibrated, code=1)
    assert state_of(out) == before
    # Only --force computes it again; a file whose header differs by a bit or that is shorter is another one.
    good = out.read_bytes()
    assert "calibrating [" in quantize(LLAMA, "q4_0", out, *calibrated, "--force")[1]
    assert state_of(out) != before and out.read_bytes() == good
    for bad in (good[:100] + bytes([good[100] ^ 1]) + good[101:], good[:-1], b""):
        out.write_bytes(bad)
        quantize(LLAMA, "q4_0", out, *calibrated, code=1)
        assert out.read_bytes() == bad


def newest_record(partial, file_bytes):
    """Number of the newest record behind the file's last byte, or a page later; 0: none."""
    try:
        with open(partial, "rb") as f:
            f.seek(-(-file_bytes // 4096) * 4096)
            slots = f.read(3 * 4096)
    except FileNotFoundError:
        return 0
    return max([0] + [int.from_bytes(slots[at + 8:at + 16], "little") for at in range(0, len(slots), 4096) if slots[at:at + 8] == b"tdmquan1"])


def start_run(model, to, out, *more, threads=1):
    """What it says is in the file OUT.err."""
    with open(f"{out}.err", "wb") as err:
        return subprocess.Popen([TANDEM, "quantize", "--model", str(model), "--to", to, "--out", str(out), "--threads", str(threads), *map(str, more)],
                                stderr=err, stdout=subprocess.DEVNULL)


def wait_until(process, seen):
    end = time.time() + 30
    while not seen():
        assert process.poll() is None and time.time() < end
        time.sleep(0.005)


def said(out):
    with open(f"{out}.err") as err:
        return err.read()


def kill_at_once(p):
    p.kill()
    return -signal.SIGKILL


def terminate(p):
    p.terminate()
    return 130


def kill_its_worker(p):
    psutil.Process(p.pid).children()[0].kill()
    return 1


def fill_its_disk(p):
    """As far as a test can: the file may not grow, which is told like ENOSPC."""
    psutil.Process(p.pid).children()[0].rlimit(psutil.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return 1


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_an_interrupted_run_goes_on_where_it_was_and_makes_the_same_file(more, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    wanted = json.loads(quantize(GEMMA3, "q8_0", whole, "--json")[0])
    if more:
        out.write_bytes(b"to be replaced")
    partial, size, before = f"{out}.partial", os.path.getsize(whole), 0
    for how in (kill_at_once, terminate, kill_its_worker, fill_its_disk):
        number = newest_record(partial, size)
        p = start_run(GEMMA3, "q8_0", out, *more)
        wait_until(p, lambda: newest_record(partial, size) > number)
        code = how(p)
        assert p.wait(30) == code, how
        err = said(out)
        at = re.search(r"continuing at (\d+) %", err)
        assert bool(at) == bool(number), err
        assert not at or before < int(at[1]) < 100, err
        before = int(at[1]) if at else 0
        if how is not kill_at_once:
            assert f"{partial} stays: the same command goes on" in err
        if how is fill_its_disk:
            assert "disk is full" in err
        assert out.read_bytes() == b"to be replaced" if more else not out.exists()
    result, err = quantize(GEMMA3, "q8_0", out, "--json", *more)
    assert int(re.search(r"continuing at (\d+) %", err)[1]) >= before and "starting anew" not in err
    d = json.loads(result)
    assert d["resumed_bytes"] > 0 and d["relative_error"] == wanted["relative_error"]
    assert subprocess.run(["cmp", str(whole), str(out)]).returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["out", "out.err", "whole"]


CALIBRATED = ("--calibration-tokens", 300, "--json")
CHANGES = len(tensors(LLAMA)) + 5  # weights of columns, a record, the header, tensors, a record, the cut behind the last byte


def killed(shim, out, n, *more, model=LLAMA, to="q4_0"):
    """A run whose worker dies before its nth change of the unfinished file. Whether it did."""
    done = subprocess.run([TANDEM, "quantize", "--model", str(model), "--to", to, "--out", str(out), *map(str, more)], capture_output=True,
                          text=True, timeout=60, env={**os.environ, "LD_PRELOAD": shim, "DISK_PREFIX": str(out), "DISK_KILL": str(n)})
    assert done.returncode in (0, 1), done.stderr
    return "signal 9" in done.stderr


def test_a_run_killed_before_any_of_its_writes_is_finished_by_the_next(shim, texts, tmp_path):
    options, out = (*CALIBRATED, "--calibration", texts[0]), tmp_path / "out"
    wanted = json.loads(quantize(LLAMA, "q4_0", tmp_path / "whole", *options)[0])
    n, begins = 0, []
    while killed(shim, out, n := n + 1, *options):
        assert not out.exists()
        result, err = quantize(LLAMA, "q4_0", out, *options)
        assert out.read_bytes() == (tmp_path / "whole").read_bytes(), n
        d = json.loads(result)
        assert d["relative_error"] == wanted["relative_error"]
        for key in ("weighted_error", "weighted_error_without"):
            assert d["calibration"][key] == wanted["calibration"][key]
        anew = "left by an earlier run with its calibration" not in err
        assert ("calibrating [" in err) == anew
        begins.append("anew" if anew else re.search(r"at (\d+) %", err)[1])
        out.unlink()
    # Before the weights of columns, before their record; then with them; at last before the records are cut off.
    assert n - 1 == CHANGES and begins[:2] == ["anew", "anew"] and "anew" not in begins[2:] and begins[-1] == "100"
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


def test_what_is_left_of_other_work_or_is_damaged_is_begun_anew(shim, texts, tmp_path):
    options, out, partial, whole = (*CALIBRATED, "--calibration", texts[0]), tmp_path / "out", tmp_path / "out.partial", tmp_path / "whole"
    quantize(LLAMA, "q4_0", whole, *options)
    assert killed(shim, out, CHANGES, *options)
    left, size = partial.read_bytes(), os.path.getsize(whole)
    records = -(-size // 4096) * 4096
    assert len(left) > records + 8192

    def flipped(*places):
        b = bytearray(left)
        for at in places:
            b[at] ^= 1
        return bytes(b)

    for what, is_kept in ((left, True), (flipped(records + 40), True), (flipped(records + 40, records + 4096 + 40), False),
                          (flipped(records + 8192), False), (left[:records], False), (b"something else", False)):
        partial.write_bytes(what)
        _, err = quantize(LLAMA, "q4_0", out, *options)
        assert ("continuing at" in err) == is_kept and ("starting anew: what an earlier run left" in err) != is_kept, err
        assert ("calibrating [" in err) != is_kept
        assert out.read_bytes() == whole.read_bytes()
        out.unlink()
    for model, to, more in ((LLAMA, "q4_1", options), (LLAMA, "q4_0", ()), (LLAMA, "q4_0", (*options[:4], texts[1])),
                            (os.path.join(FAMILIES, "qwen2.gguf"), "q4_0", options)):
        partial.write_bytes(left)
        _, err = quantize(model, to, out, *more)
        assert "starting anew: what an earlier run left" in err
        quantize(model, to, tmp_path / "other", *more)
        assert out.read_bytes() == (tmp_path / "other").read_bytes() != whole.read_bytes()
        out.unlink()
        (tmp_path / "other").unlink()
    # A command that is refused leaves it.
    partial.write_bytes(left)
    _, err = quantize(LLAMA, "q9", out, code=78)
    assert partial.read_bytes() == left and ".partial stays" not in err
    quantize(LLAMA, "q4_0", out, *options)
    assert not partial.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_has_nothing_yet_leaves_nothing(texts, tmp_path, number):
    out = tmp_path / "out"
    p = start_run(GEMMA3, "q4_0", out, "--calibration", texts[0])
    wait_until(p, lambda: "calibrating [" in said(out))
    _, err = quantize(GEMMA3, "q6_k", out, code=1)
    assert "another run" in err
    p.send_signal(number)
    assert p.wait(20) == 130
    assert ".partial stays" not in said(out) and os.listdir(tmp_path) == ["out.err"]


def test_nothing_of_a_calibration_is_left_for_another_text(texts, tmp_path):
    model, others = os.path.join(FAMILIES, "qwen3.gguf"), []
    for name, text in (("a", texts[1]), ("a", texts[0]), ("b", texts[0])):
        quantize(model, "q5_1", tmp_path / name, "--calibration", text, "--force")
        others.append((tmp_path / name).read_bytes())
    assert others[0] != others[1] == others[2]
