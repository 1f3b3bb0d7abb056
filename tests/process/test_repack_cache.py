"""The cache of repacked weights: the second start maps it; whatever is wrong with it, or in its way, only costs a repack."""
import os
import shutil
import time

import pytest
from conftest import GEMMA3, SMOLLM2, Appliance

HIT, MISS, STORED = "weights mapped from the cache", "weights repacked", "repacked weights stored"
WHOLE = "packed weights are whole"  # the check behind the service is done
ASK = {"prompt": "The four seasons are", "temperature": 0, "max_tokens": 24}
POOL = "cache.kv_pool_bytes=268435456"  # a small one is touched sooner


def wait_for(a, text, n=1, timeout=60):
    end = time.time() + timeout
    while a.log().count(text) < n:
        assert time.time() < end, f"no {n} x {text!r} in:\n{a.log()}"
        time.sleep(0.02)


def start(state, model, expect, stores=True, settings=(), until=None):
    """One life of an appliance that must say `expect` at its start, and `until` before its end; its greedy text."""
    a = Appliance(state, model=model, settings=[POOL, *settings])
    try:
        wait_for(a, expect)
        assert (HIT in a.log()) != (MISS in a.log()), a.log()
        text = a.client().completions.create(model=a.model_name, **ASK).choices[0].text
        if stores and expect == MISS:
            wait_for(a, STORED)
        if until:
            wait_for(a, until)
    finally:
        assert a.stop() == 0
    return text


def cache_file(state):
    files = [f for f in os.listdir(os.path.join(state, "cache")) if f.endswith(".weights")]
    assert len(files) == 1, files
    return os.path.join(state, "cache", files[0])


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A state folder after the first start, and the text."""
    state = tmp_path_factory.mktemp("repack")
    return state, start(state, SMOLLM2, MISS)


def copy_of(first, tmp_path):
    shutil.copytree(first[0] / "cache", tmp_path / "cache")
    return tmp_path


def test_the_second_start_maps_it(first):
    assert start(first[0], SMOLLM2, HIT) == first[1]


def test_a_killed_worker_comes_back_with_it(first, tmp_path):
    a = Appliance(copy_of(first, tmp_path), settings=[POOL])
    try:
        wait_for(a, HIT)
        assert a.kill_worker() == 1
        wait_for(a, HIT, n=2)
        a.wait_ready()
        assert a.client().completions.create(model=a.model_name, **ASK).choices[0].text == first[1]
    finally:
        assert a.stop() == 0


@pytest.mark.parametrize("where", ["header", "table", "weights", "last byte"])
def test_a_flipped_bit_means_a_repack(first, tmp_path, where):
    state = copy_of(first, tmp_path)
    path = cache_file(state)
    size = os.path.getsize(path)
    flip(path, {"header": 20, "table": 300, "weights": size // 2, "last byte": size - 1}[where])
    assert start(state, SMOLLM2, MISS) == first[1]
    assert start(state, SMOLLM2, HIT) == first[1]


@pytest.mark.parametrize("size", [0, 50, 5000, 40_000_000])
def test_a_cut_file_means_a_repack(first, tmp_path, size):
    state = copy_of(first, tmp_path)
    os.truncate(cache_file(state), size)
    assert start(state, SMOLLM2, MISS) == first[1]
    assert start(state, SMOLLM2, HIT) == first[1]


def test_a_replaced_model_is_repacked_and_its_file_replaced(tmp_path):
    model, state = tmp_path / "m.gguf", tmp_path / "state"
    shutil.copy(SMOLLM2, model)
    text = start(state, model, MISS)
    shutil.copy(SMOLLM2, tmp_path / "again.gguf")
    os.replace(tmp_path / "again.gguf", model)  # another file, the same bytes
    assert start(state, model, HIT) == text
    shutil.copy(GEMMA3, tmp_path / "other.gguf")
    os.replace(tmp_path / "other.gguf", model)
    other = start(state, model, MISS)
    assert other != text
    assert start(state, model, HIT) == other
    cache_file(state)  # one file


def test_another_isa_is_repacked(first, tmp_path):
    state = copy_of(first, tmp_path)
    start(state, SMOLLM2, MISS, settings=["cpu.force_isa=avx2"])
    start(state, SMOLLM2, HIT, settings=["cpu.force_isa=avx2"])


@pytest.mark.parametrize("folder", ["/sys/kernel", "file"])  # not even root can create files there
def test_a_cache_folder_that_takes_no_file_does_not_matter(first, tmp_path, folder):
    if folder == "file":
        folder = str(tmp_path / "plain")
        open(folder, "w").close()
    for _ in range(2):
        text = start(tmp_path / "state", SMOLLM2, MISS, stores=False, settings=[f"paths.cache_dir={folder}"])
        assert text == first[1]


def mark_of(state):
    return cache_file(state) + ".whole"


def test_after_an_orderly_stop_the_check_comes_behind_the_service(first, tmp_path):
    state = copy_of(first, tmp_path)
    assert start(state, SMOLLM2, HIT, until=WHOLE) == first[1]  # a copied file has another stamp
    assert os.path.exists(mark_of(state))
    path = cache_file(state)
    times = os.stat(path)
    flip(path, times.st_size // 2)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a bad disk would: nothing tells but the checksum
    a = Appliance(state, settings=[POOL])
    try:
        wait_for(a, "cause=weights")
        assert "checksum" in a.log()
        wait_for(a, STORED)
        a.wait_ready()
        assert a.client().completions.create(model=a.model_name, **ASK).choices[0].text == first[1]
    finally:
        assert a.stop() == 0
    assert start(state, SMOLLM2, HIT) == first[1]


def test_a_killed_tandemd_leaves_no_mark(first, tmp_path):
    state = copy_of(first, tmp_path)
    assert start(state, SMOLLM2, HIT) == first[1]
    a = Appliance(state, settings=[POOL])
    a.process.kill()
    a.process.wait()
    assert not os.path.exists(mark_of(state))
    assert start(state, SMOLLM2, HIT) == first[1]


def test_a_worker_killed_while_it_stores_leaves_nothing_behind(first, tmp_path):
    a = Appliance(tmp_path / "state", settings=[POOL])
    try:
        for _ in range(3):
            a.kill_worker()
            a.wait_ready()
        wait_for(a, STORED)
        names = os.listdir(tmp_path / "state" / "cache")
        assert len([n for n in names if ".weights" in n]) == 1, names
        assert a.client().completions.create(model=a.model_name, **ASK).choices[0].text == first[1]
    finally:
        assert a.stop() == 0
    assert start(tmp_path / "state", SMOLLM2, HIT) == first[1]


def weights_pss(pid):
    """(PSS, mapped bytes) of the weights file in a process."""
    pss = size = 0
    inside = False
    with open(f"/proc/{pid}/smaps", encoding="ascii", errors="replace") as f:
        for line in f:
            if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0]:
                inside = ".weights" in line or "(deleted)" in line and "/cache/" in line
            elif inside and line.startswith("Pss:"):
                pss += int(line.split()[1]) * 1024
            elif inside and line.startswith("Size:"):
                size += int(line.split()[1]) * 1024
    return pss, size


def test_two_workers_share_one_copy(first, tmp_path):
    state = copy_of(first, tmp_path)
    size = os.path.getsize(cache_file(state))
    a = Appliance(state, settings=[POOL, "workers.both=2"])
    try:
        wait_for(a, HIT, n=2)
        a.client().completions.create(model=a.model_name, **ASK)
        seen = [weights_pss(pid) for pid in a.worker_pids()]
        assert len(seen) == 2 and all(mapped > 0.95 * size for _, mapped in seen), seen
        assert 0.9 * size < sum(pss for pss, _ in seen) < 1.1 * size, (size, seen)
    finally:
        assert a.stop() == 0


def test_the_models_digest_is_told_and_remembered(first, tmp_path):
    wanted = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    for _ in range(2):
        a = Appliance(tmp_path / "state", settings=[POOL])
        try:
            end = time.time() + 60
            while a.status()["model"]["sha256"] != wanted:
                assert time.time() < end, a.status()["model"]
                time.sleep(0.05)
        finally:
            assert a.stop() == 0
    with open(tmp_path / "state" / "cache" / "model_digests", encoding="ascii") as f:
        assert [line.split()[1] for line in f] == [wanted]
