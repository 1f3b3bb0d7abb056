"""A KV pool that cannot be reserved or touched: the start is refused with the sizes, nothing is left to the first use, and tandemd
stays up and says why. Limits of files and control groups, and memory that is not there by fault injection."""
import json
import os
import re
import subprocess
import sys
import time

import pytest
from process_memory import tree_pss

MIB = 1 << 20
POOL = 256 * MIB
CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}
CGROUP = "/sys/fs/cgroup/memory"


def refusal(a, timeout=30):
    """The reason that /ready gives once the worker has been refused for good."""
    end = time.time() + timeout
    while time.time() < end:
        status, body, _ = a.get("/ready")
        if status == 503 and json.loads(body)["status"] == "dead":
            return body
        time.sleep(0.05)
    raise AssertionError(f"not refused: {a.get('/ready')}\n{a.log()[-3000:]}")


def check_refused(a, *texts):
    body = refusal(a)
    for text in texts:
        assert text in body, body
    status, answer, headers = a.post(CHAT, ASK)
    assert status == 503 and headers["Retry-After"] and json.loads(answer)["error"]["message"]
    n_starts = a.log().count("exit_code=78")
    time.sleep(1)
    assert a.log().count("exit_code=78") == n_starts, "it is tried again and again"
    assert a.get("/health")[0] == 200
    assert tree_pss(a.process.pid) < POOL, "memory of the refused pool is still held"


def test_a_file_size_limit_is_refused_with_both_sizes(start):
    limit = 200 * MIB  # the repacked weights need 92
    a = start(settings=[f"cache.kv_pool_bytes={POOL}"], wait_ready=False, prefix=["prlimit", f"--fsize={limit}"])
    body = refusal(a)
    wanted = int(re.search(r"no memory file of (\d+) bytes for the KV pool", body).group(1))
    assert POOL - MIB <= wanted <= POOL + 4 * MIB
    check_refused(a, "RLIMIT_FSIZE", str(limit), "cache.kv_pool_bytes")


@pytest.fixture(scope="module")
def fault_library(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("fault") / "fault_memory.so")
    source = os.path.join(os.path.dirname(__file__), "fault_memory.c")
    subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.mark.parametrize("call,from_bytes,message", [
    ("ftruncate", POOL // 2, r"no memory file of \d+ bytes for the KV pool"),
    ("mmap", POOL // 2, r"no memory for the host pool of \d+ bytes"),
    ("populate", POOL // 2, r"no memory for the host pool: \d+ of \d+ bytes are there"),
])
def test_memory_that_is_not_there_is_refused_with_the_sizes(start, fault_library, call, from_bytes, message):
    plant = ["env", f"LD_PRELOAD={fault_library}", f"TANDEM_FAULT={call}", f"TANDEM_FAULT_BYTES={from_bytes}"]
    a = start(settings=[f"cache.kv_pool_bytes={POOL}"], wait_ready=False, prefix=plant)
    assert re.search(message, refusal(a)), refusal(a)
    check_refused(a, "Cannot allocate memory")
    healthy = start(settings=[f"cache.kv_pool_bytes={POOL}"], prefix=plant[:2])  # the library alone does nothing
    assert healthy.post(CHAT, ASK)[0] == 200


@pytest.fixture
def memory_group():
    """make(bytes) -> command prefix that runs in a memory control group of that limit, and its folder."""
    made = []

    def make(limit):
        folder = os.path.join(CGROUP, f"tandem_test_{os.getpid()}_{len(made)}")
        try:
            os.mkdir(folder)
            with open(os.path.join(folder, "memory.limit_in_bytes"), "w", encoding="ascii") as f:
                f.write(str(limit))
        except OSError:
            pytest.skip("no memory control group can be made here")
        made.append(folder)
        return ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', folder], folder

    yield make
    for folder in made:
        end = time.time() + 10
        while True:
            try:
                os.rmdir(folder)
                break
            except OSError:
                assert time.time() < end, "processes are left in the control group"
                time.sleep(0.1)


def test_a_memory_control_group_is_the_budget(memory_group, start):  # in this order: the group goes last
    prefix, _ = memory_group(400 * MIB)
    a = start(settings=[f"cache.kv_pool_bytes={2 * POOL}"], wait_ready=False, prefix=prefix)
    body = refusal(a)
    at_most = int(re.search(r"cache.kv_pool_bytes to at most (\d+)", body).group(1))
    assert 0 < at_most < 2 * POOL
    check_refused(a, "511.9 MiB KV pool", "more than the memory there is of 400.0 MiB", str(400 * MIB))
    a.stop()
    # What it advises runs there, filled, and nobody is killed.
    prefix, folder = memory_group(400 * MIB)
    b = start(settings=[f"cache.kv_pool_bytes={at_most - 2 * MIB}"], prefix=prefix)
    end = time.time() + 20
    while tree_pss(b.process.pid) < at_most:
        assert time.time() < end, "the pool is not committed by itself"
        time.sleep(0.1)
    assert b.post(CHAT, ASK)[0] == 200
    with open(os.path.join(folder, "memory.oom_control"), encoding="ascii") as f:
        kills = re.search(r"oom_kill (\d+)", f.read())
    assert kills is None or int(kills.group(1)) == 0
    assert sum(v for k, v in b.metrics().items() if k.startswith("llm_worker_restarts_total")) == 0
    assert b.stop() == 0


# Takes memory until the worker is gone; where that frees less than it takes meanwhile, it goes next.
HOG = """
import os, sys, time
open("/proc/self/oom_score_adj", "w").write("-900")
held = []
while os.path.exists("/proc/" + sys.argv[1]):
    held.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.02)
"""


def test_without_memory_the_worker_goes_not_the_supervisor_and_streams_go_on(memory_group, start):
    prefix, folder = memory_group(500 * MIB)
    a = start(settings=[f"cache.kv_pool_bytes={POOL}"], prefix=prefix)

    def text():
        chunks = a.client().completions.create(model=a.model_name, prompt="Once upon a time", max_tokens=200, temperature=0, stream=True,
                                               extra_body={"ignore_eos": True})
        return "".join(chunk.choices[0].text for chunk in chunks)

    wanted = text()
    hog = subprocess.Popen([*prefix, sys.executable, "-c", HOG, str(a.worker_pids()[0])])
    while hog.poll() is None:  # one of these streams is hit
        assert text() == wanted
    assert sum(v for k, v in a.metrics().items() if k.startswith('llm_worker_restarts_total{cause="killed"')) >= 1
    with open(os.path.join(folder, "memory.oom_control"), encoding="ascii") as f:
        kills = re.search(r"oom_kill (\d+)", f.read())
    assert kills is None or int(kills.group(1)) >= 1
    a.wait_ready()
    assert a.stop() == 0
